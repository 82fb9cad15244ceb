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
        candidates: &[&Candidate],
    ) -> Result<(), Interrupt> {
        // The runs go on in a new session: marks that name the old one would count as crashes.
        if self.session != Some(session.backend) {
            self.begin();
            self.session = Some(session.backend);
        }
        if !self.owed.is_empty() {
            let query = pg::unmark_suspects(&mut session.connection, &shared.consumer.name, &self.owed);
            self.owed = pg::wait_for_answer(shared.postgres.client_timeout(), query)
                .await
                .map_err(Interrupt::from_statement)?;
            // Counted twice, one crash would be two.
            if candidates.iter().any(|one| self.owed.contains(&one.identity)) {
                let text = "another session holds the key, which is marked for an earlier run";
                return Err(Interrupt::Held(Fault::new(FaultClass::Contention, None, text)));
            }
        }
        let candidates: Vec<&&Candidate> =
            candidates.iter().filter(|one| !self.held.contains(&one.identity)).collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let now = session.clock.now();
        let suspects: Vec<_> = candidates.iter().map(|one| (&one.identity, one.fingerprint)).collect();
        step("worker.mark.before");
        let is_lenient = shared.consumer.on_conflict == OnConflict::Duplicate;
        let backend = session.backend;
        let statement = pg::mark_suspects(
            &mut session.connection,
            &shared.consumer.name,
            now,
            backend,
            is_lenient,
            &suspects,
        );
        let marked = match pg::wait_for_answer(shared.postgres.client_timeout(), statement).await {
            Ok(marked) => marked,
            Err(error) => {
                // The reply may be lost and the runs counted, so they are taken back: a mark too few costs one crash more with a message
                // that kills its process, a mark too many might give up an innocent one.
                if pg::is_outage(&error) {
                    self.owed.extend(candidates.iter().map(|one| one.identity.clone()));
                }
                return Err(Interrupt::from_statement(error));
            }
        };
        step("worker.mark.after");
        let counted = candidates.iter().zip(marked).filter(|(_, marked)| *marked);
        self.held.extend(counted.map(|(one, _)| one.identity.clone()));
        Ok(())
    }

    /// Records that every run has an outcome. Marks are gone with outcomes stored in their rows; those of `unwritten` runs are owed.
    pub(crate) fn record_reported(&mut self, unwritten: Vec<Identity>) {
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
        let query = pg::unmark_suspects(&mut open.connection, &shared.consumer.name, &self.owed);
        match pg::wait_for_answer(shared.postgres.client_timeout(), query).await {
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
        marks.record_reported(vec![identity("b"), identity("never marked")]);
        assert!(marks.held.is_empty());
        assert_eq!(marks.owed, [identity("b")]);
    }
}
