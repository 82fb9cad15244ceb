//! Was each case treated as the corpus says?

use std::collections::BTreeMap;
use std::fmt;

use testbed::{Case, Payload, Posting, RawMessage, RawValue, as_text};

use super::stage::{Run, Seen};

/// A case that went another way.
#[derive(Debug)]
pub(super) struct Wrong {
    case: String,
    wanted: String,
    found: String,
}

impl Wrong {
    pub(super) fn of(case: &str, wanted: &str, found: &str) -> Self {
        let cut = |text: &str| text.chars().take(300).collect::<String>().escape_debug().to_string();
        Self { case: case.to_owned(), wanted: cut(wanted), found: cut(found) }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:60} wanted: {:30} found: {}", self.case, self.wanted, self.found)
    }
}

/// What of one message was found to be wrong.
struct Findings<'a> {
    case: &'a str,
    wrongs: Vec<Wrong>,
}

impl Findings<'_> {
    fn same<T: PartialEq + fmt::Debug>(&mut self, what: &str, wanted: T, found: T) {
        if wanted != found {
            self.wrongs.push(Wrong::of(self.case, &format!("{what} {wanted:?}"), &format!("{found:?}")));
        }
    }
}

pub(super) fn judge(cases: &[Case], run: &Run) -> Vec<Wrong> {
    let mut wrongs = Vec::new();
    let mut decided: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    let mut expected_letters = 0;
    for case in cases {
        let mut findings = Findings { case: &case.name, wrongs: Vec::new() };
        let both = case.first.iter().map(|(posting, want)| (posting, want, None));
        for (posting, want, about) in both.chain([(&case.message, &case.want, Some(case))]) {
            let place = (posting.consumer.clone(), posting.routing_key_seen());
            let letters = run.letters.get(&place).map_or(&[][..], Vec::as_slice);
            // Text of PostgreSQL holds no NUL.
            let place = (place.0, place.1.replace('\0', "\u{fffd}"));
            let effects = run.effects.get(&place).map_or(&[][..], Vec::as_slice);
            outcome(&mut findings, want, effects.len(), letters);
            if let ([seen], Some(case)) = (effects, about) {
                effect(&mut findings, case, seen);
            }
            if let [letter] = letters {
                dead_letter(&mut findings, want, posting, about, letter);
                expected_letters += 1;
            }
            let audited = match want.as_str() {
                "expired" => continue,
                refused if refused.starts_with("refused") => continue,
                "completed" | "duplicate" => (want.clone(), String::new()),
                reason => ("dead_lettered".to_owned(), reason.to_owned()),
            };
            *decided.entry((posting.consumer.clone(), audited.0, audited.1)).or_default() += 1;
        }
        wrongs.append(&mut findings.wrongs);
    }
    let letters: usize = run.letters.values().map(Vec::len).sum();
    let mut findings = Findings { case: "(all)", wrongs: Vec::new() };
    findings.same("dead letters", expected_letters, letters);
    // The good neighbours are all completed.
    for ((consumer, outcome, reason), count) in &run.audit {
        let wanted = decided.remove(&(consumer.clone(), outcome.clone(), reason.clone())).unwrap_or(0);
        let goods = if outcome == "completed" { goods(run, consumer) } else { 0 };
        findings.same(&format!("audit rows {consumer} {outcome} {reason}"), wanted + goods, *count);
    }
    for (audited, count) in decided {
        findings.same(&format!("audit rows {audited:?}"), count, 0);
    }
    wrongs.append(&mut findings.wrongs);
    wrongs
}

fn goods(run: &Run, consumer: &str) -> usize {
    run.effects.keys().filter(|(of, name)| of == consumer && name.starts_with("good ")).count()
}

fn outcome(findings: &mut Findings<'_>, want: &str, effects: usize, letters: &[RawMessage]) {
    let found = match (effects, letters) {
        (1, []) => "completed".to_owned(),
        (0, []) => "neither effect nor dead letter".to_owned(),
        (0, [letter]) => reason(letter),
        (effects, letters) => format!("{effects} effects, {} dead letters", letters.len()),
    };
    let wanted = match want {
        "duplicate" => "neither effect nor dead letter",
        refused if refused.starts_with("refused") => "neither effect nor dead letter",
        other => other,
    };
    findings.same("", wanted.to_owned(), found);
}

/// What the letter says of itself; the broker's own say nothing of ours.
fn reason(letter: &RawMessage) -> String {
    match letter.properties.headers_by_name().get(&b"x-oncely-reason"[..]) {
        Some(RawValue::Text(_, reason)) => as_text(reason),
        None if letter.properties.headers_by_name().contains_key(&b"x-death"[..]) => "expired".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The handler saw what was sent.
fn effect(findings: &mut Findings<'_>, case: &Case, seen: &Seen) {
    findings.same("body as it was sent", true, seen.body.as_deref() == Some(&case.message.body));
    for (what, wanted, found) in [("tenant", &case.tenant_is, &seen.tenant), ("key", &case.key_is, &seen.key)]
    {
        if let Some(wanted) = wanted {
            findings.same(what, as_text(wanted), found.clone());
        }
    }
    findings.same("attempt", case.attempt.unwrap_or(1), seen.attempt);
    let shown = seen.payload.as_ref().map(|payload| payload.chars().take(100).collect::<String>());
    match &case.payload {
        Some(Payload::Null) => findings.same("payload", None, shown),
        Some(Payload::Any) => findings.same("a payload", true, shown.is_some()),
        Some(Payload::Is(json)) => {
            let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            // Numbers beyond serde's are compared as they stand.
            let same =
                seen.payload.as_deref().is_some_and(|found| found == json || parse(found) == parse(json));
            findings.same(&format!("payload {json}"), true, same || shown.is_none() && json.is_empty());
        }
        None => {}
    }
    for (column, wanted) in &case.sees {
        let found = seen.row.get(column).filter(|value| !value.is_null());
        let found = found.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let plain = |text: Option<String>| text.map(|text| text.replace(": ", ":").replace(", ", ","));
        findings.same(column, plain(wanted.clone()), plain(found));
    }
}

/// Headers that a retried copy brings back from its trip.
const OF_RETRY: [&str; 8] = [
    "oncely-rung",
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

/// Tables and arrays below so many levels come as bytes.
const DEEPEST: u32 = 64;

/// Body, properties and headers are as they were, but for what the dead letter must say or can't keep.
fn dead_letter(
    findings: &mut Findings<'_>,
    want: &str,
    sent: &Posting,
    about: Option<&Case>,
    letter: &RawMessage,
) {
    findings.same("body untouched", true, letter.body == sent.body);
    let by_broker = want == "expired";
    let headers = letter.properties.headers_by_name();
    let text = |name: &str| match headers.get(name.as_bytes()) {
        Some(RawValue::Text(b'S', text)) => Some(as_text(text)),
        _ => None,
    };
    let mut properties = sent.properties.by_name();
    // What is not UTF-8 in a property is lost on the way in; its place is kept, byte for byte.
    for value in properties.values_mut() {
        let kept = |chunk: std::str::Utf8Chunk<'_>| {
            [chunk.valid().as_bytes(), &vec![0; chunk.invalid().len()]].concat()
        };
        *value = value.utf8_chunks().flat_map(kept).collect();
    }
    let shown = |properties: &BTreeMap<&str, Vec<u8>>| -> BTreeMap<String, String> {
        properties.iter().map(|(name, value)| ((*name).to_owned(), as_text(value))).collect()
    };
    let expiration = properties.remove("expiration");
    if !by_broker {
        let user = properties.remove("user_id");
        findings.same("x-oncely-user-id", user.map(|user| as_text(&user)), text("x-oncely-user-id"));
        let expiration = expiration.map(|millis| as_text(&millis));
        findings.same("x-oncely-expiration", expiration, text("x-oncely-expiration"));
        findings.same("x-oncely-consumer", Some(sent.consumer.clone()), text("x-oncely-consumer"));
        properties.insert("delivery_mode", b"2".to_vec());
    }
    findings.same("properties", shown(&properties), shown(&letter.properties.by_name()));

    let left_out = about.map(|case| case.left_out.clone()).unwrap_or_default();
    if !left_out.is_empty() {
        findings.same("left out", Some(left_out.join(", ")), text("x-oncely-headers-left-out"));
    }
    if want.starts_with("key_") {
        findings.same("a known tenant is said where the key is bad", true, text("x-oncely-tenant").is_some());
    }
    let attempt = about.and_then(|case| case.attempt);
    if let Some(attempt) = attempt {
        let wanted = RawValue::Plain(b'l', attempt.to_be_bytes().to_vec());
        findings.same("x-oncely-attempt", Some(&wanted), headers.get(&b"x-oncely-attempt"[..]));
    }
    let ours = |name: &str| name.starts_with("x-oncely-");
    // Further routes, which a copy of ours does not take.
    let routes = |name: &str| !by_broker && ["CC", "BCC"].contains(&name);
    let retried = want == "attempts_exhausted" || by_broker;
    for (name, value) in sent.properties.headers_by_name() {
        let name = as_text(&name);
        let value = value.in_bytes_below(DEEPEST);
        if !ours(&name)
            && !routes(&name)
            && !left_out.contains(&name)
            && headers.get(name.as_bytes()) != Some(&value)
        {
            let found = format!("{:?}", headers.get(name.as_bytes()));
            findings.same(&format!("header {name}"), format!("{value:?}"), found);
        }
    }
    for name in headers.keys().map(|name| as_text(name)) {
        let sent = sent.properties.headers_by_name().keys().any(|sent| as_text(sent) == name);
        let known = sent || ours(&name) || retried && OF_RETRY.contains(&name.as_str());
        findings.same(&format!("header {name} was sent"), true, known && !routes(&name));
    }
}
