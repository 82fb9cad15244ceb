//! Groups statements that many runs issue at the same time: one statement and one commit for all.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::sessions::{LeaseSessions, Statement};
use oncely_postgres::is_outage;

/// Number of checks, while a group waits for more, whether it is full.
const FULL_CHECKS: u32 = 4;

/// The limits of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits {
    /// Maximum number of statements in progress at the same time, each in a session of its own.
    pub(crate) max_statements: usize,
    /// Maximum number of calls per statement.
    pub(crate) max_calls: usize,
    /// Time for which a group that is not full waits for more calls.
    pub(crate) wait: Duration,
}

impl GroupLimits {
    /// Creates the limits for urgent calls: no call waits, and up to 128 calls that come while all sessions are busy share the next
    /// statement, which bounds row locks and the responses in memory.
    #[doc(hidden)]
    pub fn new_urgent(max_statements: usize) -> Self {
        Self { max_statements, max_calls: 128, wait: Duration::ZERO }
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
    sender: oneshot::Sender<Result<A, sqlx::Error>>,
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
        limits: GroupLimits,
        build_statement: Arc<StatementBuilder<Q, A>>,
        follow_up: Option<Arc<FollowUpBuilder<Q, A>>>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let state = GroupState { sessions: Arc::clone(sessions), build_statement, follow_up };
        for _ in 0..limits.max_statements {
            tokio::spawn(serve_calls(Arc::clone(&receiver), limits, state.clone()));
        }
        Self(sender)
    }

    /// Issues a call once. It is carried to its end even if the caller is dropped.
    #[doc(hidden)]
    pub fn submit(&self, question: Q) -> BoxFuture<'static, Result<A, sqlx::Error>> {
        let (sender, receiver) = oneshot::channel();
        // If the tasks have ended, the sender is dropped with the call.
        let _ = self.0.send(QueuedCall { question: Arc::new(question), sender });
        Box::pin(async move { receiver.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)) })
    }
}

/// The shared state of a group's tasks.
struct GroupState<Q, A> {
    sessions: Arc<LeaseSessions>,
    build_statement: Arc<StatementBuilder<Q, A>>,
    follow_up: Option<Arc<FollowUpBuilder<Q, A>>>,
}

impl<Q, A> Clone for GroupState<Q, A> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            build_statement: Arc::clone(&self.build_statement),
            follow_up: self.follow_up.clone(),
        }
    }
}

/// Takes waiting calls together, as many as the limits allow, and runs them, until the group is dropped.
async fn serve_calls<Q: Send + Sync + 'static, A: Send + 'static>(
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<QueuedCall<Q, A>>>>,
    limits: GroupLimits,
    state: GroupState<Q, A>,
) {
    loop {
        let mut calls = Vec::new();
        {
            let mut receiver = receiver.lock().await;
            if receiver.recv_many(&mut calls, limits.max_calls).await == 0 {
                return;
            }
            let deadline = Instant::now() + limits.wait;
            // Polled a few times: a wakeup per call costs more than the statement.
            while calls.len() < limits.max_calls && Instant::now() < deadline {
                tokio::time::sleep(limits.wait / FULL_CHECKS).await;
                while calls.len() < limits.max_calls
                    && let Ok(call) = receiver.try_recv()
                {
                    calls.push(call);
                }
            }
        }
        state.run_calls(calls).await;
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> GroupState<Q, A> {
    /// Runs calls in one statement, and sends each its answer. If the statement is refused, each call runs in a statement of its own.
    async fn run_calls(&self, calls: Vec<QueuedCall<Q, A>>) {
        let questions = calls.iter().map(|call| Arc::clone(&call.question)).collect();
        match self.sessions.run_once((self.build_statement)(questions)).await {
            Ok(answers) => {
                for (call, answer) in calls.into_iter().zip(answers) {
                    self.send_answer(call, Ok(answer));
                }
            }
            // The callers repeat it as long as they need the answer.
            Err(error) if is_outage(&error) => {
                for call in calls {
                    let outage =
                        std::io::Error::new(std::io::ErrorKind::ConnectionAborted, error.to_string());
                    self.send_answer(call, Err(sqlx::Error::Io(outage)));
                }
            }
            // One of the calls may be the cause: nothing was written, and each is issued in a statement of its own.
            Err(_) => {
                let statements = calls.into_iter().map(async |call| {
                    let answers = self
                        .sessions
                        .run_once((self.build_statement)(vec![Arc::clone(&call.question)]))
                        .await;
                    let answer = answers
                        .and_then(|answers| answers.into_iter().next().ok_or(sqlx::Error::WorkerCrashed));
                    self.send_answer(call, answer);
                });
                join_all(statements).await;
            }
        }
    }

    /// Sends an answer to its caller. If the caller was dropped, the follow-up statement, if one is needed, runs in a task.
    fn send_answer(&self, QueuedCall { question, sender }: QueuedCall<Q, A>, answer: Result<A, sqlx::Error>) {
        let Err(Ok(answer)) = sender.send(answer) else { return };
        let Some(statement) = self.follow_up.as_ref().and_then(|follow_up| follow_up(question, answer))
        else {
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
