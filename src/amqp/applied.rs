//! What became of a topology that was applied.

use super::connection::AmqpError;

/// What the broker refused to declare.
#[derive(Debug)]
pub struct Refused {
    /// What was to be declared, for people.
    pub name: String,
    /// What the broker said.
    pub error: AmqpError,
    /// What was found there then.
    pub found: Beside,
}

/// What is there of something that the broker refuses to declare.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    /// One of this name: it has other arguments, or the broker takes none of these for it.
    Same,
    /// Nothing of this name: the broker does not take the arguments.
    Nothing,
    /// Of a binding: these are not there.
    Missing(Vec<String>),
}

/// Lists what [`Topology::apply`](super::topology::Topology::apply) declared and what the broker refused.
#[derive(Debug, Default)]
pub struct Applied {
    /// Declared, or there already.
    pub done: Vec<String>,
    /// What the broker refused, and what is there: it is left as it is.
    pub refused: Vec<Refused>,
    /// The work queue was not there, though what belongs around it was, and the configuration names no bindings for it.
    pub is_unbound: bool,
}
