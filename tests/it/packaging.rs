//! Files that no compiler reads.
