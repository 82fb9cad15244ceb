//! Marks of runs of redelivered messages that have begun and not been reported as ended.

use std::collections::HashSet;

use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::ConsumerContext;
use oncely_core::decide::OnConflict;
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::identity::Identity;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, Backend, Session};

/// Keys of the runs that this lane has counted in PostgreSQL.
///
/// A mark that remains when the process dies counts as a crash. Everything else takes it back: a run that completed or failed by its
/// outcome, one that was interrupted (an outage, a lost channel, a stop) by [`Marks::take_back`].
#[derive(Debug, Default)]
pub(crate) struct Marks {
    held: HashSet<Identity>,
    /// Session that these marks name: while it is open, their runs are alive.
    session: Option<Backend>,
    /// Marks of earlier work that remain to be taken back, once PostgreSQL answers.
    owed: Vec<Identity>,
}

impl Marks {
    /// Begins other work: marks still held belong to work that was interrupted.
    pub(crate) fn begin(&mut self) {
        self.owed.extend(self.held.drain());
    }

    /// Counts the runs that begin now, unless they are counted already.
    pub(crate) async fn mark(
        &mut self,
        shared: &ConsumerContext,
        session: &mut Session,
        work: &[&Candidate],
    ) -> Result<(), Interrupt> {
        // The runs go on in a new session: marks that name the old one would count as crashes.
        if self.session != Some(session.backend) {
            self.begin();
            self.session = Some(session.backend);
        }
        if !self.owed.is_empty() {
            let asked = pg::unmark(&mut session.connection, &shared.consumer.name, &self.owed);
            self.owed =
                pg::within(shared.postgres.client_timeout(), asked).await.map_err(Interrupt::of_ours)?;
            // Counted twice, one crash would be two.
            if work.iter().any(|one| self.owed.contains(&one.identity)) {
                let text = "another session holds the key, which is marked for an earlier run";
                return Err(Interrupt::Held(Fault::new(FaultClass::Contention, None, text)));
            }
        }
        let work: Vec<&&Candidate> = work.iter().filter(|one| !self.held.contains(&one.identity)).collect();
        if work.is_empty() {
            return Ok(());
        }
        let now = session.clock.now();
        let suspects: Vec<_> = work.iter().map(|one| (&one.identity, one.fingerprint)).collect();
        step("worker.mark.before");
        let lenient = shared.consumer.on_conflict == OnConflict::Duplicate;
        let backend = session.backend;
        let marking =
            pg::mark(&mut session.connection, &shared.consumer.name, now, backend, lenient, &suspects);
        let marked = match pg::within(shared.postgres.client_timeout(), marking).await {
            Ok(marked) => marked,
            Err(error) => {
                // The reply may be lost and the runs counted, so they are taken back: a mark too few costs one crash more with a message
                // that kills its process, a mark too many might give up an innocent one.
                if pg::is_outage(&error) {
                    self.owed.extend(work.iter().map(|one| one.identity.clone()));
                }
                return Err(Interrupt::of_ours(error));
            }
        };
        step("worker.mark.after");
        let counted = work.iter().zip(marked).filter(|(_, marked)| *marked);
        self.held.extend(counted.map(|(one, _)| one.identity.clone()));
        Ok(())
    }

    /// Records that every run has an outcome, stored in its row except for those that are `unwritten`: their marks are taken back.
    pub(crate) fn reported(&mut self, unwritten: Vec<Identity>) {
        self.owed.extend(unwritten.into_iter().filter(|identity| self.held.contains(identity)));
        self.held.clear();
    }

    /// Returns whether marks are to be taken back.
    pub(crate) fn are_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Takes the marks back if PostgreSQL answers; else keeps them until it does.
    pub(crate) async fn take_back(&mut self, shared: &ConsumerContext, session: &mut Option<Session>) {
        self.begin();
        if self.owed.is_empty() {
            return;
        }
        let open = match session {
            Some(open) => open,
            None => match shared.open_session().await {
                Ok(open) => session.insert(open),
                Err(error) => {
                    tracing::debug!(error = %error, "marks of redelivered messages are not taken back yet");
                    return;
                }
            },
        };
        let asked = pg::unmark(&mut open.connection, &shared.consumer.name, &self.owed);
        match pg::within(shared.postgres.client_timeout(), asked).await {
            Ok(left) => self.owed = left,
            Err(error) => {
                tracing::debug!(error = %error, "marks of redelivered messages are not taken back yet");
                *session = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncely_core::identity::IdentityPart;

    #[test]
    fn a_run_whose_failure_was_recorded_before_owes_its_mark() {
        let identity = |key: &str| {
            let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
            Identity { tenant: part("acme"), consumer: part("payments"), key: part(key) }
        };
        let mut marks = Marks { held: ["a", "b"].map(identity).into(), ..Marks::default() };
        marks.reported(vec![identity("b"), identity("never marked")]);
        assert!(marks.held.is_empty());
        assert_eq!(marks.owed, [identity("b")]);
    }
}
