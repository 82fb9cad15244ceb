//! Role of a login.

use std::fmt;

use serde::Serialize;

/// Role of a login: one of Oncely's roles in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Processes messages.
    Worker,
    /// Publishes events, mirrors keys, maintains the tables.
    Relay,
    /// An operator, who may change state.
    Operator,
    /// An auditor, who may only read.
    Auditor,
}

impl Role {
    /// All roles, in the order in which they are detected.
    pub const ALL: [Self; 4] = [Self::Worker, Self::Relay, Self::Operator, Self::Auditor];

    /// Returns the role's name in PostgreSQL.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "oncely_worker",
            Self::Relay => "oncely_relay",
            Self::Operator => "oncely_operator",
            Self::Auditor => "oncely_auditor",
        }
    }

    /// Returns the table and function privileges for the role's tasks that, when missing, would be noticed late.
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
