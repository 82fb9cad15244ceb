//! What was looked at, and what was found.

use serde::Serialize;

use crate::tls::TlsFault;

/// What a check says of what it looked at; the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it must be.
    Ok,
    /// Worth knowing.
    Info,
    /// Not, or not wholly looked at: nobody knows.
    Skipped,
    /// Works, and may not go on so.
    Warning,
    /// Messages can't be taken, may be lost, or may take effect twice.
    Error,
}

impl Verdict {
    /// All of them, the worst last.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Info, Self::Skipped, Self::Warning, Self::Error];

    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's id.
    pub check: &'static str,
    /// How bad it is; never [`Verdict::Ok`].
    pub verdict: Verdict,
    /// What it is about: a setting, a consumer, a queue. Empty where the text says it.
    pub about: String,
    /// What is so, and what to do about it. Holds no secret, and nothing of a message.
    pub text: String,
    /// Where it is about trust in a server: what was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<TlsFault>,
}

/// Everything that checks have found, as they ran.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) findings: Vec<Finding>,
    /// What was read, by check. A check that has read something has run.
    pub(crate) read: Vec<(&'static str, String)>,
    /// Servers that do not answer, by the check that says so: they may come back.
    pub(crate) unreachable: Vec<(&'static str, String)>,
    /// What findings quote and an archive for strangers must not say.
    pub(crate) quoted: Vec<Quoted>,
}

/// A part of a finding's text that is nobody else's business.
#[derive(Clone, Debug)]
pub(crate) enum Quoted {
    /// A name of a process or a host.
    Name(String),
    /// What a person wrote.
    Words(String),
}

impl Found {
    pub(crate) fn add(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        about: impl Into<String>,
        text: impl Into<String>,
    ) {
        self.findings.push(Finding { check, verdict, about: about.into(), text: text.into(), kind: None });
    }

    /// Says of the last finding what was wrong with a server that can't be trusted.
    pub(crate) fn kind(&mut self, fault: TlsFault) {
        if let Some(last) = self.findings.last_mut() {
            last.kind = Some(fault);
        }
    }

    pub(crate) fn error(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Error, about, text);
    }

    pub(crate) fn warning(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Warning, about, text);
    }

    pub(crate) fn info(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Info, about, text);
    }

    /// Why a check, or a part of it, did not run.
    pub(crate) fn skipped(&mut self, check: &'static str, why: impl Into<String>) {
        self.add(check, Verdict::Skipped, "", why);
    }

    /// Notes what a check has read.
    pub(crate) fn read(&mut self, check: &'static str, what: impl Into<String>) {
        self.read.push((check, what.into()));
    }

    /// A server does not answer.
    pub(crate) fn away(&mut self, check: &'static str, text: impl Into<String>) {
        self.unreachable.push((check, text.into()));
    }

    /// Takes over what another look has found.
    pub(crate) fn join(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.read.extend(other.read);
        self.unreachable.extend(other.unreachable);
        self.quoted.extend(other.quoted);
    }
}
