//! Runs of redelivered messages that have begun and whose end is not reported yet.

use std::collections::HashSet;

use crate::decide::OnConflict;
use crate::failpoint::step;
use crate::fault::{Fault, FaultClass};
use crate::identity::Identity;
use crate::pg::{self, Backend, Session};
use crate::worker::candidate::Candidate;
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::Shared;

/// The keys whose run this lane has counted in PostgreSQL.
///
/// A mark stays when the process dies, and says so. Everything else takes it back: a run that completed or failed by its
/// outcome, one that was interrupted (an outage, a channel that went, a stop) by [`Marks::take_back`].
#[derive(Debug, Default)]
pub(crate) struct Marks {
    held: HashSet<Identity>,
    /// The session that these marks name: while it is open, their runs live.
    session: Option<Backend>,
    /// Of earlier work: to be taken back, which PostgreSQL could not be asked for yet.
    owed: Vec<Identity>,
}

impl Marks {
    /// Other work begins: what is still held belongs to work that was interrupted.
    pub(crate) fn begin(&mut self) {
        self.owed.extend(self.held.drain());
    }

    /// Counts the runs that begin now, unless they are counted already.
    pub(crate) async fn mark(
        &mut self,
        shared: &Shared,
        session: &mut Session,
        work: &[&Candidate],
    ) -> Result<(), Interrupt> {
        // The runs go on in a new session: marks that name the old one would count as deaths.
        if self.session != Some(session.backend) {
            self.begin();
            self.session = Some(session.backend);
        }
        if !self.owed.is_empty() {
            let asked = pg::unmark(&mut session.connection, &shared.consumer.name, &self.owed);
            self.owed =
                pg::within(shared.postgres.client_timeout(), asked).await.map_err(Interrupt::of_ours)?;
            // Counted twice, one death would be two.
            if work.iter().any(|one| self.owed.contains(&one.identity)) {
                let text = "somebody holds the key, which is marked for an earlier run";
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
                // The reply may be lost, so they may be counted all the same, and are taken back: a mark too few costs a killer
                // one more death, a mark too many might cost an innocent its place.
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

    /// Every run has an outcome now, and its row says so, but for those that are `unwritten`: their marks are taken back.
    pub(crate) fn reported(&mut self, unwritten: Vec<Identity>) {
        self.owed.extend(unwritten.into_iter().filter(|identity| self.held.contains(identity)));
        self.held.clear();
    }

    /// Is something to be taken back?
    pub(crate) fn are_owed(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Takes the marks back, if PostgreSQL can be asked; else they are held until it can.
    pub(crate) async fn take_back(&mut self, shared: &Shared, session: &mut Option<Session>) {
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
    use crate::identity::IdentityPart;

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
