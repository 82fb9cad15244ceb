//! What many runs say at the same time, said together: one statement and one commit for all of them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::sessions::{Sessions, Statement};
use crate::pg::is_outage;

/// How often a group that waits for more looks whether it is full.
const LOOKS: u32 = 4;

/// How runs are grouped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouping {
    /// Statements that are out at the same time, each in a session of its own.
    pub(crate) loops: usize,
    /// Most that is said in one.
    pub(crate) most: usize,
    /// How long one that is not full waits for more.
    pub(crate) linger: Duration,
}

impl Grouping {
    /// Of what is urgent: nothing waits, and what comes while all are out goes together with the next. 128 of them: locks of so many rows, and
    /// responses of so many runs in memory.
    pub(crate) fn at_once(loops: usize) -> Self {
        Self { loops, most: 128, linger: Duration::ZERO }
    }
}

/// Makes the statement that says all of them; its answers stand in their order.
pub(crate) type Say<Q, A> = dyn Fn(Vec<Arc<Q>>) -> Statement<Vec<A>, sqlx::Error> + Send + Sync;

/// What follows from an answer that nobody waits for any more, where something does: a run that was dropped meanwhile.
pub(crate) type Unheard<Q, A> = dyn Fn(Arc<Q>, A) -> Option<Statement<(), sqlx::Error>> + Send + Sync;

/// Where runs say it.
pub(crate) struct Group<Q, A>(mpsc::UnboundedSender<Asked<Q, A>>);

struct Asked<Q, A> {
    question: Arc<Q>,
    answer: oneshot::Sender<Result<A, sqlx::Error>>,
}

impl<Q, A> Clone for Group<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> Group<Q, A> {
    /// Ends when nobody can say anything any more.
    pub(crate) fn start(
        sessions: &Arc<Sessions>,
        grouping: Grouping,
        say: Arc<Say<Q, A>>,
        unheard: Option<Arc<Unheard<Q, A>>>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let saying = Saying { sessions: Arc::clone(sessions), say, unheard };
        for _ in 0..grouping.loops {
            tokio::spawn(serve(Arc::clone(&receiver), grouping, saying.clone()));
        }
        Self(sender)
    }

    /// Says it once, to its end, whoever stops waiting for it.
    pub(crate) fn say(&self, question: Q) -> BoxFuture<'static, Result<A, sqlx::Error>> {
        let (answer, answered) = oneshot::channel();
        // Where nobody takes it, its other end is dropped with it.
        let _ = self.0.send(Asked { question: Arc::new(question), answer });
        Box::pin(async move { answered.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)) })
    }
}

/// How a group says it.
struct Saying<Q, A> {
    sessions: Arc<Sessions>,
    say: Arc<Say<Q, A>>,
    unheard: Option<Arc<Unheard<Q, A>>>,
}

impl<Q, A> Clone for Saying<Q, A> {
    fn clone(&self) -> Self {
        Self {
            sessions: Arc::clone(&self.sessions),
            say: Arc::clone(&self.say),
            unheard: self.unheard.clone(),
        }
    }
}

async fn serve<Q: Send + Sync + 'static, A: Send + 'static>(
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<Asked<Q, A>>>>,
    grouping: Grouping,
    saying: Saying<Q, A>,
) {
    loop {
        let mut asked = Vec::new();
        {
            let mut receiver = receiver.lock().await;
            if receiver.recv_many(&mut asked, grouping.most).await == 0 {
                return;
            }
            let until = Instant::now() + grouping.linger;
            // Looked at a few times: waking for each that comes costs more than saying it.
            while asked.len() < grouping.most && Instant::now() < until {
                tokio::time::sleep(grouping.linger / LOOKS).await;
                while asked.len() < grouping.most
                    && let Ok(one) = receiver.try_recv()
                {
                    asked.push(one);
                }
            }
        }
        saying.together(asked).await;
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> Saying<Q, A> {
    async fn together(&self, asked: Vec<Asked<Q, A>>) {
        let questions = asked.iter().map(|one| Arc::clone(&one.question)).collect();
        match self.sessions.ask((self.say)(questions)).await {
            Ok(said) => {
                for (one, said) in asked.into_iter().zip(said) {
                    self.tell(one, Ok(said));
                }
            }
            // Said again by whoever wants to know, as long as he does.
            Err(error) if is_outage(&error) => {
                for one in asked {
                    let away = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, error.to_string());
                    self.tell(one, Err(sqlx::Error::Io(away)));
                }
            }
            // One of them may be the cause: nothing was written, and each is said by itself.
            Err(_) => {
                let each = asked.into_iter().map(async |one| {
                    let said = self.sessions.ask((self.say)(vec![Arc::clone(&one.question)])).await;
                    let said =
                        said.and_then(|said| said.into_iter().next().ok_or(sqlx::Error::WorkerCrashed));
                    self.tell(one, said);
                });
                join_all(each).await;
            }
        }
    }

    fn tell(&self, Asked { question, answer }: Asked<Q, A>, said: Result<A, sqlx::Error>) {
        let Err(Ok(said)) = answer.send(said) else { return };
        let Some(statement) = self.unheard.as_ref().and_then(|unheard| unheard(question, said)) else {
            return;
        };
        let sessions = Arc::clone(&self.sessions);
        tokio::spawn(async move {
            if let Err(error) = sessions.ask(statement).await {
                tracing::debug!(%error, "what nobody waits for could not be taken back");
            }
        });
    }
}
