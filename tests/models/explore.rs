//! Runs a model to its end.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model};

/// Every state is visited: what must always hold does, and what should be possible is.
pub fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let started = Instant::now();
    let properties = model.properties();
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let discoveries = checker.discoveries();
    for property in &properties {
        match (&property.expectation, discoveries.get(property.name)) {
            (Expectation::Sometimes, None) => panic!("{name}: never reached: {}", property.name),
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                panic!("{name}: broken: {}\n{path}", property.name)
            }
            _ => {}
        }
    }
    println!(
        "{name}: holds in {} states ({} steps, {} deep), {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
}

/// A known-bad policy: this property is broken, and the shortest way there is printed.
pub fn breaks<M>(name: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq,
{
    let started = Instant::now();
    let known = model.properties();
    let known = known.iter().find(|known| known.name == property).expect("a property of the model");
    assert_ne!(known.expectation, Expectation::Sometimes, "{property} is not an invariant");
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(wanted).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{name}: {property:?} was not broken in {} states", checker.unique_state_count());
    };
    let steps: Vec<String> = path.into_actions().into_iter().map(|action| format!("{action:?}")).collect();
    println!(
        "{name}: breaks {property:?} after {} states, {:.1} s: {}",
        checker.unique_state_count(),
        started.elapsed().as_secs_f64(),
        steps.join(", ")
    );
}
