//! Events: written with the effect that they tell of, published once that has committed.

mod emit;
