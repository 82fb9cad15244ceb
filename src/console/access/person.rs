//! Who looks, and what they may do here.

use crate::shown;

/// What somebody may do. The database's roles have the last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// To look.
    Viewer,
    /// To act, too.
    Operator,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator].into_iter().find(|role| role.as_str() == text)
    }
}

/// Somebody who has come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Longest name, in bytes.
pub(crate) const NAME: usize = 128;

impl Person {
    /// `None` where the name is empty, too long, or hides something.
    pub(crate) fn new(name: &str, role: Role) -> Option<Self> {
        let name = name.trim();
        let fits = !name.is_empty() && name.len() <= NAME && shown::value(name) == name;
        fits.then(|| Self { name: name.to_owned(), role })
    }

    /// As what they do is recorded.
    pub(crate) fn actor(&self) -> String {
        format!("{}, console", self.name)
    }
}
