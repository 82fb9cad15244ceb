//! A store in Redis or Valkey.

mod settings;

use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

pub use settings::RedisSettings;

use super::check::{check_claim, check_failure, check_json, check_lease, check_step, check_step_name, kept};
use super::claim::{Claim, Claimed, Grant};
use super::error::StoreError;
use super::held::{BegunStep, Failed, Failure, Held, Known, Renewed, StepState};
use super::micros::micros;
use super::steps::step_key;
use super::store::{Facts, Failover, LeaseStore, StoreClock};
use crate::decide::KeyStatus;
use crate::fingerprint::Fingerprint;
use crate::handler::lease::Step;
use crate::identity::Identity;
use crate::mirror::{Library, LibraryError, Part};
use crate::reason::Reason;

const CODE: &str = include_str!("library.lua");

/// Name of the library: with a hash of its code, so that two builds beside each other call each its own.
fn name() -> String {
    let digest: [u8; 32] = Sha256::digest(CODE).into();
    let short = digest[..4].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("oncely_lease_{short}")
}

/// A store in Redis or Valkey, 7 or later: each key is one hash, whose changes are functions inside the server, by the server's clock. What it
/// is asked is one round trip on a shared connection.
///
/// It knows what the server knows: a crash takes the last second with it (`appendonly yes`, `appendfsync everysec`) or everything (without a
/// file), a failover what the replica lacks. A key that is forgotten so runs again, under a greater token and with the same keys of its steps.
/// Where that is too much, PostgreSQL keeps the leases.
///
/// The server must have `maxmemory-policy noeviction`, so it is not one that caches. It is one server, or a master that Sentinels name; not a
/// Redis Cluster.
#[derive(Clone)]
pub struct RedisStore {
    library: Library,
    prefix: String,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// An answer's parts.
struct Answer(std::vec::IntoIter<Part>);

impl Answer {
    fn part(&mut self) -> Option<Vec<u8>> {
        self.0.next().flatten()
    }

    fn text(&mut self) -> Result<String, StoreError> {
        let part = self.part().ok_or_else(|| StoreError::Damaged("an answer is too short".to_owned()))?;
        String::from_utf8(part).map_err(|_| StoreError::Damaged("an answer is no text".to_owned()))
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, StoreError> {
        let text = self.text()?;
        text.parse().map_err(|_| StoreError::Damaged("an answer has no number where one belongs".to_owned()))
    }

    fn time(&mut self) -> Result<Duration, StoreError> {
        Ok(Duration::from_micros(self.number()?))
    }

    fn json(&mut self) -> Result<Option<Value>, StoreError> {
        let Some(part) = self.part() else { return Ok(None) };
        serde_json::from_slice(&part)
            .map(Some)
            .map_err(|_| StoreError::Damaged("what is stored is no JSON".to_owned()))
    }

    fn reason(&mut self) -> Result<Reason, StoreError> {
        Reason::from_code(&self.text()?).ok_or_else(|| StoreError::Damaged("the reason is none".to_owned()))
    }
}

fn store_error(error: LibraryError) -> StoreError {
    match error {
        LibraryError::Unfit(why) => StoreError::Refused(why),
        LibraryError::OtherType => StoreError::Damaged("the key is of another type".to_owned()),
        LibraryError::Mirror(error) => StoreError::unavailable(error),
    }
}

fn number(given: impl ToString) -> Vec<u8> {
    given.to_string().into_bytes()
}

impl RedisStore {
    /// What a user needs in Redis's ACL, beside the keys that begin with the prefix. A function runs as the user who calls it.
    pub const COMMANDS: &[&str] = &[
        "+info",
        "+function|list",
        "+fcall",
        "+time",
        "+exists",
        "+hget",
        "+hmget",
        "+hset",
        "+hdel",
        "+hkeys",
        "+hstrlen",
        "+pexpireat",
    ];

    /// Connects, and sees whether leases may be kept there. The functions are loaded where they are missing, for which the user also needs
    /// `+function|load`; else an administrator loads [`RedisStore::library`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] where the server must be set up otherwise first: it says how. [`StoreError::Unavailable`] where it can't be reached.
    pub async fn open(settings: RedisSettings) -> Result<Self, StoreError> {
        let prefix = settings.prefix.clone();
        let library = Library::new(settings.connection(), name(), Self::library());
        library.open().await.map_err(store_error)?;
        Ok(Self { library, prefix })
    }

    /// The functions, for `FUNCTION LOAD`.
    #[must_use]
    pub fn library() -> String {
        let name = name();
        format!("#!lua name={name}\n{}", CODE.replace("NAME_", &format!("{name}_")))
    }

    /// Where a key is kept: the prefix and 160 bits of SHA-256 over tenant, consumer and key, each after its length in four bytes.
    #[must_use]
    pub fn place(&self, identity: &Identity) -> String {
        let mut hash = Sha256::new();
        for part in [identity.tenant.as_str(), identity.consumer.as_str(), identity.key.as_str()] {
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        digest[..20].iter().fold(self.prefix.clone(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// The first part of the answer, and the rest.
    async fn call(
        &self,
        function: &str,
        identity: &Identity,
        arguments: &[&[u8]],
    ) -> Result<(String, Answer), StoreError> {
        let parts =
            self.library.call(function, &self.place(identity), arguments).await.map_err(store_error)?;
        let mut answer = Answer(parts.into_iter());
        let said = answer.text()?;
        match said.as_str() {
            "lost" => Err(StoreError::Lost),
            "refused" => Err(StoreError::Refused(answer.text()?)),
            "damaged" => Err(StoreError::Damaged(format!("field {}", answer.text()?))),
            _ => Ok((said, answer)),
        }
    }
}

fn strange(said: &str) -> StoreError {
    StoreError::Damaged(format!("a function answered {said:?}"))
}

impl LeaseStore for RedisStore {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::Forgets, clock: StoreClock::Server }
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
        check_claim(claim)?;
        let print = Fingerprint::of_digest(&claim.fingerprint);
        let times = [claim.lease, claim.max_run, claim.retention].map(|time| number(micros(time)));
        let crashes = number(claim.max_crashes);
        let arguments: [&[u8]; 6] =
            [&print.0, claim.owner.as_bytes(), &times[0], &times[1], &times[2], &crashes];
        let (said, mut answer) = self.call("claim", claim.identity, &arguments).await?;
        Ok(match said.as_str() {
            "granted" => Claimed::Granted(Grant {
                token: answer.number()?,
                attempt: answer.number()?,
                is_takeover: answer.number::<u32>()? > 0,
            }),
            "in_flight" => Claimed::InFlight(answer.time()?),
            "wait" => Claimed::Wait(answer.time()?),
            "done" => Claimed::Done(answer.json()?),
            "conflict" => Claimed::Conflict,
            "crashed" => Claimed::GivenUp { reason: answer.reason()?, detail: answer.text()? },
            "given_up" => Claimed::GivenUp {
                reason: answer.reason()?,
                detail: format!("given up before: {}", answer.text()?),
            },
            other => return Err(strange(other)),
        })
    }

    async fn renew(&self, held: &[Held], lease: Duration) -> Result<Vec<Renewed>, StoreError> {
        check_lease(lease)?;
        let lease = number(micros(lease));
        let each = held.iter().map(async |held| {
            match self.call("renew", &held.identity, &[&number(held.token), &lease]).await {
                Ok((_, mut answer)) => Ok(Renewed::Until(answer.time()?)),
                Err(StoreError::Lost) => Ok(Renewed::Lost),
                Err(error) => Err(error),
            }
        });
        // On one connection, so one round trip for many.
        futures::future::try_join_all(each).await
    }

    async fn begin_step(
        &self,
        held: &Held,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let (rule, window) = step.repeat().rule();
        let window = window.map(|window| number(micros(window))).unwrap_or_default();
        let (token, lease, call) = (number(held.token), number(micros(lease)), number(call));
        let arguments: [&[u8]; 6] = [&token, &lease, step.name().as_bytes(), rule.as_bytes(), &window, &call];
        let (said, mut answer) = self.call("begin_step", &held.identity, &arguments).await?;
        let round = answer.number()?;
        let state = match said.as_str() {
            "run" => StepState::Run,
            "repeat" => StepState::Repeat,
            "done" => StepState::Done(answer.json()?.unwrap_or_default()),
            "unknown" => StepState::Unknown,
            other => return Err(strange(other)),
        };
        Ok(BegunStep { state, call_key: step_key(&held.identity, step.name(), round), round })
    }

    async fn checkpoint(
        &self,
        held: &Held,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let result = check_json("result", result)?;
        let arguments: [&[u8]; 4] =
            [&number(held.token), &number(micros(lease)), step.as_bytes(), result.as_bytes()];
        self.call("checkpoint", &held.identity, &arguments).await.map(drop)
    }

    async fn refuse_step(
        &self,
        held: &Held,
        step: &str,
        round: u32,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let arguments: [&[u8]; 4] =
            [&number(held.token), &number(micros(lease)), step.as_bytes(), &number(round)];
        let (_, mut answer) = self.call("refuse_step", &held.identity, &arguments).await?;
        answer.number()
    }

    async fn complete(&self, held: &Held, response: Option<&Value>) -> Result<(), StoreError> {
        let response = response.map(|response| check_json("response", response)).transpose()?;
        let token = number(held.token);
        let arguments: Vec<&[u8]> =
            std::iter::once(&token[..]).chain(response.as_ref().map(String::as_bytes)).collect();
        self.call("complete", &held.identity, &arguments).await.map(drop)
    }

    async fn fail(&self, held: &Held, failure: &Failure<'_>) -> Result<Failed, StoreError> {
        check_failure(failure)?;
        let error = kept(failure.error);
        let arguments: [&[u8]; 5] = [
            &number(held.token),
            &number(failure.max_attempts),
            &number(micros(failure.delay)),
            failure.reason.map_or("", Reason::as_str).as_bytes(),
            error.as_bytes(),
        ];
        let (said, mut answer) = match self.call("fail", &held.identity, &arguments).await {
            Err(StoreError::Lost) => return Ok(Failed::Lost),
            answered => answered?,
        };
        Ok(match said.as_str() {
            "retry" => Failed::Retry { attempts: answer.number()? },
            "given_up" => Failed::GivenUp { attempts: answer.number()?, reason: answer.reason()? },
            "completed" => Failed::Completed,
            other => return Err(strange(other)),
        })
    }

    async fn release(&self, held: &Held) -> Result<bool, StoreError> {
        match self.call("release", &held.identity, &[&number(held.token)]).await {
            Err(StoreError::Lost) => Ok(false),
            released => released.map(|_| true),
        }
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<Known>, StoreError> {
        let (said, mut answer) = self.call("look_up", identity, &[]).await?;
        if said == "none" {
            return Ok(None);
        }
        let status = match answer.text()?.as_str() {
            "P" => KeyStatus::InProgress,
            "C" => KeyStatus::Completed,
            "F" => KeyStatus::Failed,
            other => return Err(strange(other)),
        };
        let owner = answer.part().map(|owner| String::from_utf8_lossy(&owner).into_owned());
        let (token, attempts, crashes) = (answer.number()?, answer.number()?, answer.number()?);
        let reason = match answer.part() {
            None => None,
            Some(code) => Reason::from_code(&String::from_utf8_lossy(&code)),
        };
        let response = answer.json()?;
        Ok(Some(Known { status, owner, token, attempts, crashes, reason, response }))
    }
}
