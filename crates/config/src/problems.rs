//! All problems of a configuration, in one report.

use std::fmt;

use oncely_core::identity::IdentityPart;

/// One problem: its place and an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The key, as `consumers[0].retention`, or the checked object.
    pub place: String,
    /// Description of the problem and its remedy, without secrets.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// All problems. A refused configuration ends a process with exit code 78 (`EX_CONFIG` of sysexits.h).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { place: place.into(), message: message.into() });
    }

    /// Parses a part of an identity; `None` if it is invalid, which is reported.
    pub(crate) fn parse_identity_part(&mut self, text: &str, place: &str) -> Option<IdentityPart> {
        IdentityPart::new(text.as_bytes()).map_err(|error| self.add(place, error.to_string())).ok()
    }

    /// Returns whether a place, or a part of it, has a problem.
    pub(crate) fn has(&self, place: &str) -> bool {
        let is_part = |other: &str| {
            other
                .strip_prefix(place)
                .is_some_and(|remainder| remainder.is_empty() || remainder.starts_with(['.', '[']))
        };
        self.0.iter().any(|problem| is_part(&problem.place))
    }

    /// Returns whether there is no problem.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all problems, in the order in which they were found.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.0
    }

    /// Converts to a result: `value` if there is no problem.
    ///
    /// # Errors
    /// If there are problems: all of them.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "{count} problem{} with the configuration:", if count == 1 { "" } else { "s" })?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
