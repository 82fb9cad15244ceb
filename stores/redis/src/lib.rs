//! A store in Redis or Valkey.

mod settings;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

pub use settings::RedisSettings;

use oncely_core::decide::KeyStatus;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;
use oncely_lease::{
    BegunStep, Claim, ClaimOutcome, Facts, FailOutcome, Failover, Failure, Grant, KeySnapshot, LeaseId,
    LeaseStore, RefusedCall, RenewOutcome, Step, StepState, StepStore, StoreClock, StoreError, check_claim,
    check_failure, check_json, check_lease, check_step, check_step_name, step_key, to_micros, truncate_error,
};
use oncely_mirror::{Library, LibraryError, ReplyPart};

const CODE: &str = include_str!("library.lua");

/// Returns the name of the library. It holds a hash of the code, so that two builds running side by side each call their own.
fn library_name() -> String {
    let digest: [u8; 32] = Sha256::digest(CODE).into();
    let short = digest[..4].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("oncely_lease_{short}")
}

/// A lease store in Redis or Valkey, 7 or later. Each key is one string, changed by functions inside the server, by the server's clock. Each
/// call is one round trip on a shared connection.
///
/// It is as durable as the server: a crash loses the last second (`appendonly yes`, `appendfsync everysec`) or everything (no append-only
/// file), a failover loses writes that the replica lacks. A key lost in this way runs again, under a greater token and with the same step
/// keys. Where that is not acceptable, keep the leases in PostgreSQL.
///
/// The server must have `maxmemory-policy noeviction`, so it can't also be a cache. It is one server, a master named by Sentinels, or a Redis
/// Cluster, where each key is on the master of its slot.
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

/// The parts of a function's answer, in order.
struct ReplyParts(std::vec::IntoIter<ReplyPart>);

impl ReplyParts {
    /// Takes the next part; `None` for nil, and at the end.
    fn take_part(&mut self) -> Option<Vec<u8>> {
        self.0.next().flatten()
    }

    fn take_text(&mut self) -> Result<String, StoreError> {
        let part =
            self.take_part().ok_or_else(|| StoreError::Damaged("an answer is too short".to_owned()))?;
        String::from_utf8(part).map_err(|_| StoreError::Damaged("an answer is no text".to_owned()))
    }

    fn take_number<T: std::str::FromStr>(&mut self) -> Result<T, StoreError> {
        let text = self.take_text()?;
        text.parse().map_err(|_| StoreError::Damaged("an answer has no number where one belongs".to_owned()))
    }

    fn take_time(&mut self) -> Result<Duration, StoreError> {
        Ok(Duration::from_micros(self.take_number()?))
    }

    /// Takes the next part as JSON; `None` for nil.
    fn take_json(&mut self) -> Result<Option<Value>, StoreError> {
        let Some(part) = self.take_part() else { return Ok(None) };
        serde_json::from_slice(&part)
            .map(Some)
            .map_err(|_| StoreError::Damaged("what is stored is no JSON".to_owned()))
    }

    /// Takes the next part as a reason code.
    fn take_reason(&mut self) -> Result<Reason, StoreError> {
        Ok(Reason::from_stored_code(&self.take_text()?))
    }
}

fn to_store_error(error: LibraryError) -> StoreError {
    match error {
        LibraryError::Unfit(why) => StoreError::Refused(why),
        LibraryError::OtherType => StoreError::Damaged("the key is of another type".to_owned()),
        LibraryError::Mirror(error) => StoreError::unavailable(error),
    }
}

/// Converts a number or an id to an argument of a function.
fn to_argument(given: impl ToString) -> Vec<u8> {
    given.to_string().into_bytes()
}

impl RedisStore {
    /// Commands that the Redis user must be allowed by ACL, beside the keys that begin with the prefix. A function runs as the user who
    /// calls it.
    pub const COMMANDS: &[&str] = &[
        "+info",
        "+role",
        "+cluster|info",
        "+cluster|slots",
        "+function|list",
        "+fcall",
        "+time",
        "+get",
        "+set",
        "+setrange",
        "+asking",
    ];

    /// Connects and checks that the server may keep leases. Loads the functions if they are missing, for which the user also needs
    /// `+function|load`; otherwise an administrator loads [`RedisStore::library`].
    ///
    /// # Errors
    /// If the server's configuration must be changed first: [`StoreError::Refused`], which names the change. If the server can't be
    /// reached: [`StoreError::Unavailable`].
    pub async fn open(settings: RedisSettings) -> Result<Self, StoreError> {
        let prefix = settings.prefix.clone();
        let library = Library::new(settings.into_mirror_settings()?, library_name(), Self::library());
        library.open().await.map_err(to_store_error)?;
        Ok(Self { library, prefix })
    }

    /// Returns the code of the functions, for `FUNCTION LOAD`.
    #[must_use]
    pub fn library() -> String {
        let name = library_name();
        format!("#!lua name={name}\n{}", CODE.replace("NAME_", &format!("{name}_")))
    }

    /// Returns the name of the Redis key of an identity: the prefix and 160 bits of SHA-256 over tenant, consumer and key, each preceded by
    /// its length in four bytes.
    #[must_use]
    pub fn place(&self, identity: &Identity) -> String {
        let mut hash = Sha256::new();
        for part in [identity.tenant.as_str(), identity.consumer.as_str(), identity.key.as_str()] {
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut place = self.prefix.clone();
        for byte in &digest[..20] {
            // Writing to a string never fails.
            let _ = write!(place, "{byte:02x}");
        }
        place
    }

    /// Calls a function; returns the first part of the answer and the remaining ones.
    async fn call(
        &self,
        function: &str,
        identity: &Identity,
        arguments: &[&[u8]],
    ) -> Result<(String, ReplyParts), StoreError> {
        let parts =
            self.library.call(function, &self.place(identity), arguments).await.map_err(to_store_error)?;
        let mut answer = ReplyParts(parts.into_iter());
        let said = answer.take_text()?;
        match said.as_str() {
            "lost" => Err(StoreError::Lost),
            "refused" => Err(StoreError::Refused(answer.take_text()?)),
            "damaged" => Err(StoreError::Damaged(format!("its {} can't be read", answer.take_text()?))),
            _ => Ok((said, answer)),
        }
    }
}

fn unexpected_answer(said: &str) -> StoreError {
    StoreError::Damaged(format!("a function answered {said:?}"))
}

impl StepStore for RedisStore {
    async fn renew(&self, held: &[LeaseId], lease: Duration) -> Result<Vec<RenewOutcome>, StoreError> {
        check_lease(lease)?;
        let lease = to_argument(to_micros(lease));
        let each = held.iter().map(async |held| {
            match self.call("renew", &held.identity, &[&to_argument(held.token), &lease]).await {
                Ok((_, mut answer)) => Ok(RenewOutcome::Until(answer.take_time()?)),
                Err(StoreError::Lost) => Ok(RenewOutcome::Lost),
                Err(error) => Err(error),
            }
        });
        // On one connection: many leases take one round trip.
        futures::future::try_join_all(each).await
    }

    async fn begin_step(
        &self,
        held: &LeaseId,
        step: &Step,
        call: Uuid,
        lease: Duration,
    ) -> Result<BegunStep, StoreError> {
        check_step(step)?;
        check_lease(lease)?;
        let (rule, window) = step.repeat().rule();
        let window = window.map(|window| to_argument(to_micros(window))).unwrap_or_default();
        let (token, lease, call) =
            (to_argument(held.token), to_argument(to_micros(lease)), to_argument(call));
        let arguments: [&[u8]; 6] = [&token, &lease, step.name().as_bytes(), rule.as_bytes(), &window, &call];
        let (said, mut answer) = self.call("begin_step", &held.identity, &arguments).await?;
        let round = answer.take_number()?;
        let state = match said.as_str() {
            "run" => StepState::Run,
            "repeat" => StepState::Repeat,
            "done" => StepState::Done(answer.take_json()?.unwrap_or_default()),
            "unknown" => StepState::Unknown,
            other => return Err(unexpected_answer(other)),
        };
        Ok(BegunStep { state, call_key: step_key(&held.identity, step.name(), round), round })
    }

    async fn checkpoint(
        &self,
        held: &LeaseId,
        step: &str,
        result: &Value,
        lease: Duration,
    ) -> Result<(), StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let result = check_json("result", result)?;
        let arguments: [&[u8]; 4] =
            [&to_argument(held.token), &to_argument(to_micros(lease)), step.as_bytes(), result.as_bytes()];
        self.call("checkpoint", &held.identity, &arguments).await.map(drop)
    }

    async fn refuse_step(
        &self,
        held: &LeaseId,
        step: &str,
        refused: RefusedCall,
        lease: Duration,
    ) -> Result<u32, StoreError> {
        check_step_name(step)?;
        check_lease(lease)?;
        let (round, call) = match refused {
            RefusedCall::Round(round) => (to_argument(round), Vec::new()),
            RefusedCall::Begun(call) => (Vec::new(), to_argument(call)),
        };
        let arguments: [&[u8]; 5] =
            [&to_argument(held.token), &to_argument(to_micros(lease)), step.as_bytes(), &round, &call];
        let (_, mut answer) = self.call("refuse_step", &held.identity, &arguments).await?;
        answer.take_number()
    }
}

impl LeaseStore for RedisStore {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::Forgets, clock: StoreClock::Server }
    }

    async fn claim(&self, claim: &Claim<'_>) -> Result<ClaimOutcome, StoreError> {
        check_claim(claim)?;
        let print = Fingerprint::from_digest(&claim.fingerprint);
        let times = [claim.lease, claim.max_run, claim.retention].map(|time| to_argument(to_micros(time)));
        let crashes = to_argument(claim.max_crashes);
        let arguments: [&[u8]; 6] =
            [&print.0, claim.owner.as_bytes(), &times[0], &times[1], &times[2], &crashes];
        let (said, mut answer) = self.call("claim", claim.identity, &arguments).await?;
        Ok(match said.as_str() {
            "granted" => ClaimOutcome::Granted(Grant {
                token: answer.take_number()?,
                attempt: answer.take_number()?,
                is_takeover: answer.take_number::<u32>()? > 0,
            }),
            "in_flight" => ClaimOutcome::InFlight(answer.take_time()?),
            "wait" => ClaimOutcome::Wait(answer.take_time()?),
            "done" => ClaimOutcome::Done(answer.take_json()?),
            "conflict" => ClaimOutcome::Conflict,
            "crashed" => ClaimOutcome::GivenUp { reason: answer.take_reason()?, detail: answer.take_text()? },
            "given_up" => ClaimOutcome::GivenUp {
                reason: answer.take_reason()?,
                detail: format!("given up before: {}", answer.take_text()?),
            },
            other => return Err(unexpected_answer(other)),
        })
    }

    async fn complete(&self, held: &LeaseId, response: Option<&Value>) -> Result<(), StoreError> {
        let response = response.map(|response| check_json("response", response)).transpose()?;
        let token = to_argument(held.token);
        let arguments: Vec<&[u8]> =
            std::iter::once(&token[..]).chain(response.as_ref().map(String::as_bytes)).collect();
        self.call("complete", &held.identity, &arguments).await.map(drop)
    }

    async fn fail(&self, held: &LeaseId, failure: &Failure<'_>) -> Result<FailOutcome, StoreError> {
        check_failure(failure)?;
        let error = truncate_error(failure.error);
        let arguments: [&[u8]; 5] = [
            &to_argument(held.token),
            &to_argument(failure.max_attempts),
            &to_argument(to_micros(failure.delay)),
            failure.reason.map_or("", Reason::as_str).as_bytes(),
            error.as_bytes(),
        ];
        let (said, mut answer) = match self.call("fail", &held.identity, &arguments).await {
            Err(StoreError::Lost) => return Ok(FailOutcome::Lost),
            answered => answered?,
        };
        Ok(match said.as_str() {
            "retry" => FailOutcome::Retry { attempts: answer.take_number()? },
            "given_up" => {
                FailOutcome::GivenUp { attempts: answer.take_number()?, reason: answer.take_reason()? }
            }
            "completed" => FailOutcome::Completed,
            other => return Err(unexpected_answer(other)),
        })
    }

    async fn release(&self, held: &LeaseId) -> Result<bool, StoreError> {
        match self.call("release", &held.identity, &[&to_argument(held.token)]).await {
            Err(StoreError::Lost) => Ok(false),
            released => released.map(|_| true),
        }
    }

    async fn look_up(&self, identity: &Identity) -> Result<Option<KeySnapshot>, StoreError> {
        let (said, mut answer) = self.call("look_up", identity, &[]).await?;
        if said == "none" {
            return Ok(None);
        }
        let status = match answer.take_text()?.as_str() {
            "P" => KeyStatus::InProgress,
            "C" => KeyStatus::Completed,
            "F" => KeyStatus::Failed,
            other => return Err(unexpected_answer(other)),
        };
        let owner = answer.take_part().map(|owner| String::from_utf8_lossy(&owner).into_owned());
        let (token, attempts, crashes) =
            (answer.take_number()?, answer.take_number()?, answer.take_number()?);
        let reason = match answer.take_part() {
            None => None,
            Some(code) => Reason::from_code(&String::from_utf8_lossy(&code)),
        };
        let response = answer.take_json()?;
        Ok(Some(KeySnapshot { status, owner, token, attempts, crashes, reason, response }))
    }
}
