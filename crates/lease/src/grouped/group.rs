//! Groups statements that many runs issue at the same time: one statement and one commit for all.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::sessions::{LeaseSessions, Statement};
use oncely_postgres::is_outage;

/// Number of checks, while a group waits for more, whether it is full.
const LOOKS: u32 = 4;

/// The limits of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits {
    /// Maximum number of statements in progress at the same time, each in a session of its own.
    pub(crate) loops: usize,
    /// Maximum number of calls per statement.
    pub(crate) most: usize,
    /// Time that a group that is not full waits for more calls.
    pub(crate) linger: Duration,
}

impl GroupLimits {
    /// Returns the limits for urgent calls: none waits, and calls that come while all sessions are busy share the next statement. 128 of
    /// them bound row locks and the responses in memory.
    #[doc(hidden)]
    pub fn at_once(loops: usize) -> Self {
        Self { loops, most: 128, linger: Duration::ZERO }
    }
}

/// Builds the statement for a group of calls; its answers are in their order.
pub(crate) type StatementBuilder<Q, A> = dyn Fn(Vec<Arc<Q>>) -> Statement<Vec<A>, sqlx::Error> + Send + Sync;

/// Builds a follow-up statement, if one is needed, for an answer that came after its caller was dropped.
pub(crate) type FollowUpBuilder<Q, A> = dyn Fn(Arc<Q>, A) -> Option<Statement<(), sqlx::Error>> + Send + Sync;

/// The queue that runs send their calls to.
pub struct CallGroup<Q, A>(mpsc::UnboundedSender<QueuedCall<Q, A>>);

struct QueuedCall<Q, A> {
    question: Arc<Q>,
    answer: oneshot::Sender<Result<A, sqlx::Error>>,
}

impl<Q, A> Clone for CallGroup<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> CallGroup<Q, A> {
    /// Starts the tasks of a group. They end when all clones of the group are dropped.
    #[doc(hidden)]
    pub fn start(
        sessions: &Arc<LeaseSessions>,
        grouping: GroupLimits,
        statement_for: Arc<StatementBuilder<Q, A>>,
        unheard: Option<Arc<FollowUpBuilder<Q, A>>>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let state = GroupState { sessions: Arc::clone(sessions), statement_for, unheard };
        for _ in 0..grouping.loops {
            tokio::spawn(serve(Arc::clone(&receiver), grouping, state.clone()));
        }
        Self(sender)
    }

    /// Issues a call once. It is carried to its end even if the caller is dropped.
    #[doc(hidden)]
    pub fn submit(&self, question: Q) -> BoxFuture<'static, Result<A, sqlx::Error>> {
        let (answer, answered) = oneshot::channel();
        // If the tasks have ended, the sender is dropped with the call.
        let _ = self.0.send(QueuedCall { question: Arc::new(question), answer });
        Box::pin(async move { answered.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)) })
    }
}

/// The shared state of a group's tasks.
struct GroupState<Q, A> {
    sessions: Arc<LeaseSessions>,
    statement_for: Arc<StatementBuilder<Q, A>>,
    unheard: Option<Arc<FollowUpBuilder<Q, A>>>,
}

impl<Q, A> Clone for GroupState<Q, A> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            statement_for: Arc::clone(&self.statement_for),
            unheard: self.unheard.clone(),
        }
    }
}

async fn serve<Q: Send + Sync + 'static, A: Send + 'static>(
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<QueuedCall<Q, A>>>>,
    grouping: GroupLimits,
    state: GroupState<Q, A>,
) {
    loop {
        let mut asked = Vec::new();
        {
            let mut receiver = receiver.lock().await;
            if receiver.recv_many(&mut asked, grouping.most).await == 0 {
                return;
            }
            let until = Instant::now() + grouping.linger;
            // Polled a few times: a wakeup per call costs more than the statement.
            while asked.len() < grouping.most && Instant::now() < until {
                tokio::time::sleep(grouping.linger / LOOKS).await;
                while asked.len() < grouping.most
                    && let Ok(one) = receiver.try_recv()
                {
                    asked.push(one);
                }
            }
        }
        state.together(asked).await;
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> GroupState<Q, A> {
    async fn together(&self, asked: Vec<QueuedCall<Q, A>>) {
        let questions = asked.iter().map(|one| Arc::clone(&one.question)).collect();
        match self.sessions.run_once((self.statement_for)(questions)).await {
            Ok(said) => {
                for (one, said) in asked.into_iter().zip(said) {
                    self.tell(one, Ok(said));
                }
            }
            // The callers repeat it as long as they need the answer.
            Err(error) if is_outage(&error) => {
                for one in asked {
                    let away = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, error.to_string());
                    self.tell(one, Err(sqlx::Error::Io(away)));
                }
            }
            // One of the calls may be the cause: nothing was written, and each is issued in a statement of its own.
            Err(_) => {
                let each = asked.into_iter().map(async |one| {
                    let said =
                        self.sessions.run_once((self.statement_for)(vec![Arc::clone(&one.question)])).await;
                    let said =
                        said.and_then(|said| said.into_iter().next().ok_or(sqlx::Error::WorkerCrashed));
                    self.tell(one, said);
                });
                join_all(each).await;
            }
        }
    }

    fn tell(&self, QueuedCall { question, answer }: QueuedCall<Q, A>, said: Result<A, sqlx::Error>) {
        let Err(Ok(said)) = answer.send(said) else { return };
        let Some(statement) = self.unheard.as_ref().and_then(|unheard| unheard(question, said)) else {
            return;
        };
        let sessions = Arc::clone(&self.sessions);
        tokio::spawn(async move {
            if let Err(error) = sessions.run_once(statement).await {
                tracing::debug!(%error, "an unclaimed answer could not be taken back");
            }
        });
    }
}
