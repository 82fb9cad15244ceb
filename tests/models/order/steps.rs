//! The steps of emitters and relays, one statement or one publish each.

/// How the relay works; all but the first are known to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Right,
    /// Publishes the next event of a key although the one before was refused.
    GoesOn,
    /// Publishes what it could lock, whatever is missing before it.
    TakesBehindGaps,
    /// Takes the first events that nobody holds.
    SkipsHeldHeads,
    /// Numbers come from a sequence, so a higher one may commit first.
    Sequence,
    /// Deletes everything that was published.
    DeletesUnconfirmed,
}

/// A world.
pub struct Ordered {
    pub policy: Policy,
    pub events: usize,
    /// Events of the key that a relay takes at once.
    pub in_row: usize,
    pub refusals: u8,
    pub outages: u8,
    pub crashes: u8,
    pub zombies: u8,
}

/// What a relay is about. Events are numbers from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relay {
    #[default]
    Idle,
    /// Its statement has its snapshot, and has locked nothing yet.
    Saw(Vec<usize>),
    /// It publishes, one after another.
    Took { events: Vec<usize>, next: usize, confirmed: Vec<usize>, holds: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Events that are committed and not deleted.
    pub rows: Vec<bool>,
    pub emitted: Vec<bool>,
    /// Which relay's transaction holds a row.
    pub held: Vec<Option<u8>>,
    pub relays: [Relay; 2],
    pub arrived: Vec<bool>,
    pub overtaken: bool,
    pub lost: bool,
    pub repeated: bool,
    pub published_as_zombie: bool,
    refusals: u8,
    outages: u8,
    crashes: u8,
    zombies: u8,
}

impl State {
    pub fn is_empty(&self) -> bool {
        !self.rows.contains(&true)
    }

    fn arrives(&mut self, event: usize) {
        self.repeated |= self.arrived[event];
        self.overtaken |= !self.arrived[event] && self.arrived[..event].contains(&false);
        self.arrived[event] = true;
    }

    fn release(&mut self, relay: usize) {
        for holder in &mut self.held {
            if holder.map(usize::from) == Some(relay) {
                *holder = None;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An emitter commits this event.
    Commit(usize),
    See(usize),
    Lock(usize),
    PublishConfirmed(usize),
    PublishRefused(usize),
    /// It arrives, and the connection breaks before the confirm.
    PublishUnknown(usize),
    /// Deletes what was confirmed, and commits.
    Finish(usize),
    Crash(usize),
    /// PostgreSQL ends the session; the relay does not know it yet.
    LoseSession(usize),
}

impl Ordered {
    pub fn start(&self) -> State {
        State {
            rows: vec![false; self.events],
            emitted: vec![false; self.events],
            held: vec![None; self.events],
            relays: [Relay::Idle, Relay::Idle],
            arrived: vec![false; self.events],
            overtaken: false,
            lost: false,
            repeated: false,
            published_as_zombie: false,
            refusals: self.refusals,
            outages: self.outages,
            crashes: self.crashes,
            zombies: self.zombies,
        }
    }

    pub fn choices(&self, state: &State, actions: &mut Vec<Action>) {
        let waiting = (0..self.events).filter(|&event| !state.emitted[event]);
        let next = match self.policy {
            Policy::Sequence => usize::MAX,
            // An emitter holds the key's row until its commit.
            _ => 1,
        };
        actions.extend(waiting.take(next).map(Action::Commit));
        for (index, relay) in state.relays.iter().enumerate() {
            match relay {
                Relay::Idle => actions.push(Action::See(index)),
                Relay::Saw(_) => actions.push(Action::Lock(index)),
                Relay::Took { events, next, holds, .. } => {
                    if *next < events.len() {
                        actions.push(Action::PublishConfirmed(index));
                        if state.refusals > 0 {
                            actions.push(Action::PublishRefused(index));
                        }
                        if state.outages > 0 {
                            actions.push(Action::PublishUnknown(index));
                        }
                    } else {
                        actions.push(Action::Finish(index));
                    }
                    if state.crashes > 0 {
                        actions.push(Action::Crash(index));
                    }
                    if state.zombies > 0 && *holds {
                        actions.push(Action::LoseSession(index));
                    }
                }
            }
        }
    }

    pub fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Commit(event) => {
                state.emitted[event] = true;
                state.rows[event] = true;
            }
            Action::See(relay) => {
                let seen = (0..self.events).filter(|&event| state.rows[event]);
                let seen: Vec<usize> = match self.policy {
                    Policy::SkipsHeldHeads => {
                        seen.filter(|&event| state.held[event].is_none()).take(self.in_row).collect()
                    }
                    _ => seen.take(self.in_row).collect(),
                };
                if !seen.is_empty() {
                    state.relays[relay] = Relay::Saw(seen);
                }
            }
            Action::Lock(relay) => {
                let Relay::Saw(seen) = std::mem::take(&mut state.relays[relay]) else { return };
                let free = |event: &usize| state.rows[*event] && state.held[*event].is_none();
                let locked: Vec<usize> = seen.iter().copied().filter(free).collect();
                // What was locked in vain stays locked until the end of the transaction.
                let events: Vec<usize> = match self.policy {
                    Policy::TakesBehindGaps => locked.clone(),
                    _ => seen.iter().copied().take_while(free).collect(),
                };
                if events.is_empty() {
                    return;
                }
                for event in locked {
                    state.held[event] = u8::try_from(relay).ok();
                }
                state.relays[relay] = Relay::Took { events, next: 0, confirmed: Vec::new(), holds: true };
            }
            Action::PublishConfirmed(relay) => {
                let Relay::Took { events, next, confirmed, holds } = &mut state.relays[relay] else { return };
                let event = events[*next];
                *next += 1;
                confirmed.push(event);
                state.published_as_zombie |= !*holds;
                state.arrives(event);
            }
            Action::PublishRefused(relay) => {
                let Relay::Took { events, next, confirmed, .. } = &mut state.relays[relay] else { return };
                if self.policy == Policy::DeletesUnconfirmed {
                    confirmed.push(events[*next]);
                }
                *next = if self.policy == Policy::GoesOn { *next + 1 } else { events.len() };
                state.refusals -= 1;
            }
            Action::PublishUnknown(relay) => {
                let Relay::Took { events, next, .. } = &mut state.relays[relay] else { return };
                let event = events[*next];
                *next = events.len();
                state.outages -= 1;
                state.arrives(event);
            }
            Action::Finish(relay) => {
                let Relay::Took { confirmed, holds, .. } = std::mem::take(&mut state.relays[relay]) else {
                    return;
                };
                if holds {
                    for event in confirmed {
                        state.lost |= !state.arrived[event];
                        state.rows[event] = false;
                    }
                    state.release(relay);
                }
            }
            Action::Crash(relay) => {
                state.relays[relay] = Relay::Idle;
                state.release(relay);
                state.crashes -= 1;
            }
            Action::LoseSession(relay) => {
                if let Relay::Took { holds, .. } = &mut state.relays[relay] {
                    *holds = false;
                }
                state.release(relay);
                state.zombies -= 1;
            }
        }
    }
}
