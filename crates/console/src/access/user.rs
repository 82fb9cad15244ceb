//! The user of the console, and the user's role.

use oncely_core::shown;

oncely_core::words! {
    array;
    /// The role of a user in the console. The roles of the database limit it further.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum ConsoleRole {
        /// Can look.
        Viewer = "viewer",
        /// Can also act.
        Operator = "operator",
    }
}

impl ConsoleRole {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// A user who has signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) role: ConsoleRole,
}

/// Maximum length of a name, in bytes.
pub(crate) const NAME: usize = 128;

impl User {
    /// Returns `None` if the name is empty, too long, or has hidden characters.
    pub(crate) fn new(name: &str, role: ConsoleRole) -> Option<Self> {
        let name = name.trim();
        let fits = !name.is_empty() && name.len() <= NAME && shown::value(name) == name;
        fits.then(|| Self { name: name.to_owned(), role })
    }

    /// Returns the name for records of the user's actions.
    pub(crate) fn actor(&self) -> String {
        format!("{}, console", self.name)
    }
}
