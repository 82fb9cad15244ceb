//! What a login is for.

use std::fmt;

use serde::Serialize;

/// What a login is for, by Oncely's role in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs messages.
    Worker,
    /// Publishes events, mirrors keys, keeps the tables.
    Relay,
    /// A person who changes something.
    Operator,
    /// A person who looks.
    Auditor,
}

impl Role {
    /// The one that is looked for first, first.
    pub const ALL: [Self; 4] = [Self::Worker, Self::Relay, Self::Operator, Self::Auditor];

    /// PostgreSQL's.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "oncely_worker",
            Self::Relay => "oncely_relay",
            Self::Operator => "oncely_operator",
            Self::Auditor => "oncely_auditor",
        }
    }

    /// What its work takes of the tables and functions: privileges whose absence is noticed late.
    pub(super) fn privileges(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Worker => &[
                ("select", "oncely.idempotency_keys"),
                ("insert", "oncely.idempotency_keys"),
                ("update", "oncely.idempotency_keys"),
                ("insert", "oncely.audit"),
                ("insert", "oncely.mirror_queue"),
                ("insert", "oncely.dead_letters"),
                ("insert", "oncely.letter_growth"),
                ("select", "oncely.controls"),
            ],
            Self::Relay => &[
                ("update", "oncely.idempotency_keys"),
                ("execute", "oncely.delete_keys"),
                ("update", "oncely.mirror_queue"),
                ("execute", "oncely.delete_mirrored"),
                ("update", "oncely.events"),
                ("execute", "oncely.delete_events"),
                ("select", "oncely.processes"),
            ],
            Self::Operator => &[
                ("select", "oncely.audit"),
                ("update", "oncely.dead_letters"),
                ("execute", "oncely.change_events"),
                ("select", "oncely.processes"),
                ("select", "oncely.stats"),
            ],
            Self::Auditor => &[
                ("select", "oncely.audit"),
                ("select", "oncely.audit_seals"),
                ("select", "oncely.processes"),
                ("select", "oncely.stats"),
            ],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().trim_start_matches("oncely_"))
    }
}
