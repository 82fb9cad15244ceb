//! Findings of checks.

use serde::Serialize;

use oncely_net::tls::TlsFault;

oncely_core::words! {
    array;
    /// Verdict of a check; the worst last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Verdict {
        /// As required.
        Ok = "ok",
        /// Noteworthy.
        Info = "info",
        /// Not, or not completely checked: unknown.
        Skipped = "skipped",
        /// Works now, but may fail.
        Warning = "warning",
        /// Messages can't be processed, may be lost, or may take effect twice.
        Error = "error",
    }
}

/// Finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's id.
    pub check: &'static str,
    /// Severity; never [`Verdict::Ok`].
    pub verdict: Verdict,
    /// Subject: a setting, a consumer, a queue. Empty if the text names it.
    pub about: String,
    /// Description and remedy, without secrets and contents of messages.
    pub text: String,
    /// Cause of failed trust in a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<TlsFault>,
}

/// Results of checks, in the order in which they ran.
#[derive(Debug, Default)]
pub struct CheckFindings {
    pub findings: Vec<Finding>,
    /// Data that was read, by check. A check with an entry has run.
    pub read: Vec<(&'static str, String)>,
    /// Servers that do not answer, by reporting check; they may recover.
    pub unreachable: Vec<(&'static str, String)>,
    /// Quoted texts that an archive for third parties must mask.
    pub quoted: Vec<QuotedText>,
}

/// A part of a finding's text that must be masked.
#[derive(Clone, Debug)]
pub enum QuotedText {
    /// A name of a process or a host.
    Name(String),
    /// Text that a user wrote.
    Words(String),
}

impl CheckFindings {
    pub fn add(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        about: impl Into<String>,
        text: impl Into<String>,
    ) {
        self.findings.push(Finding { check, verdict, about: about.into(), text: text.into(), kind: None });
    }

    /// Sets the cause of failed trust in the last finding; does nothing without a finding.
    pub(crate) fn set_kind(&mut self, fault: TlsFault) {
        if let Some(last) = self.findings.last_mut() {
            last.kind = Some(fault);
        }
    }

    pub fn add_error(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Error, about, text);
    }

    pub fn add_warning(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Warning, about, text);
    }

    pub fn add_info(&mut self, check: &'static str, about: impl Into<String>, text: impl Into<String>) {
        self.add(check, Verdict::Info, about, text);
    }

    /// Adds the reason why a check, or a part of it, did not run.
    pub fn add_skipped(&mut self, check: &'static str, reason: impl Into<String>) {
        self.add(check, Verdict::Skipped, "", reason);
    }

    /// Records data that a check has read.
    pub fn add_read(&mut self, check: &'static str, data: impl Into<String>) {
        self.read.push((check, data.into()));
    }

    /// Records a server that does not answer, with the reason.
    pub fn add_unreachable(&mut self, check: &'static str, text: impl Into<String>) {
        self.unreachable.push((check, text.into()));
    }

    /// Appends the results of other checks.
    pub fn append(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.read.extend(other.read);
        self.unreachable.extend(other.unreachable);
        self.quoted.extend(other.quoted);
    }
}
