//! All ways of a consumer's runs to PostgreSQL. Each kind waits for its own kind only.

use std::sync::Arc;
use std::time::Duration;

use super::group::{Group, Grouping};
use super::sessions::{Sessions, statement};
use super::trail::Trail;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::pg::{self, Away, Finished, Held, Renewal, Session};

use serde_json::Value;

/// Renewals come at any time, and none of them is urgent: each waits a little for others.
const RENEWING: Grouping = Grouping { loops: 2, most: 1_024, linger: Duration::from_millis(100) };

/// Which lease of which key.
#[derive(Clone, Debug)]
pub(crate) struct HeldKey {
    pub(crate) identity: Identity,
    pub(crate) token: i64,
}

impl HeldKey {
    pub(crate) fn as_held(&self) -> Held<'_> {
        Held { identity: &self.identity, token: self.token }
    }
}

/// What the mirror will know a completed key by, in an epoch of the database.
pub(crate) type MakeTag = dyn Fn(&str, &Identity, Option<&Fingerprint>) -> [u8; 16] + Send + Sync;

/// A run that has come to its end, and writes nothing itself.
pub(crate) struct Finishing {
    pub(crate) key: HeldKey,
    /// Of the payload, for the mirror.
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) response: Option<Value>,
    pub(crate) refused: bool,
    pub(crate) trail: Trail,
}

impl Finishing {
    fn as_row(&self) -> Finished<'_> {
        Finished {
            held: self.key.as_held(),
            response: self.response.as_ref(),
            refused: self.refused,
            trace: self.trail.of(),
        }
    }
}

/// The ways of one consumer.
#[derive(Clone)]
pub(crate) struct Lines {
    /// For claims, steps and ends: short statements of ours.
    pub(crate) own: Arc<Sessions>,
    /// For renewals.
    renewals: Arc<Sessions>,
    /// For handlers' transactions, which may take as long as a run.
    pub(crate) writes: Arc<Sessions>,
    pub(crate) renewing: Group<HeldKey, Renewal>,
    pub(crate) finishing: Group<Finishing, ()>,
    /// When PostgreSQL could not be reached by any of them.
    pub(crate) away: Away,
}

impl Lines {
    /// `groups`: of completions, at the same time; `lease`: how long a renewed one lasts; `tag`: where there is a mirror.
    pub(crate) fn open(
        [own, renewals, writes]: [Arc<Sessions>; 3],
        away: Away,
        groups: usize,
        lease: Duration,
        tag: Option<Arc<MakeTag>>,
    ) -> Self {
        let renewing = Group::start(
            &renewals,
            RENEWING,
            Arc::new(move |keys: Vec<Arc<HeldKey>>| {
                statement(move |connection| {
                    Box::pin(async move {
                        let held: Vec<Held<'_>> = keys.iter().map(|key| key.as_held()).collect();
                        pg::renew_leases(connection, &held, lease).await
                    })
                })
            }),
            None,
        );
        let finishing = Group::start(
            &own,
            Grouping::at_once(groups),
            Arc::new(move |ends: Vec<Arc<Finishing>>| {
                let tag = tag.clone();
                Box::new(move |session| Box::pin(complete(session, ends, tag)))
            }),
            None,
        );
        Self { own, renewals, writes, renewing, finishing, away }
    }

    /// Closes what rests.
    pub(crate) async fn close(&self) {
        for sessions in [&self.own, &self.renewals, &self.writes] {
            sessions.close().await;
        }
    }
}

async fn complete(
    session: &mut Session,
    ends: Vec<Arc<Finishing>>,
    tag: Option<Arc<MakeTag>>,
) -> Result<Vec<()>, sqlx::Error> {
    let epoch = &session.cell.epoch;
    let tags: Option<Vec<u8>> = tag.map(|tag| {
        ends.iter().flat_map(|end| tag(epoch, &end.key.identity, end.fingerprint.as_ref())).collect()
    });
    let finished: Vec<Finished<'_>> = ends.iter().map(|end| end.as_row()).collect();
    pg::complete_leases(&mut session.connection, &finished, tags.as_deref()).await?;
    Ok(vec![(); finished.len()])
}
