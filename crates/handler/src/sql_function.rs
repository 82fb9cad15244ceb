//! A handler that is a SQL function, so that a stock worker needs no Rust from its user.

/// `app.capture_payment(oncely.message) returns jsonb`, or the batch form
/// `app.capture_payments(oncely.message[]) returns setof oncely.result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlFunction {
    /// Schema-qualified name, as in SQL: folded to lower case unless quoted. Resolved by PostgreSQL, never pasted into a statement.
    pub name: String,
    /// Whether it is the set-returning form.
    pub batch: bool,
    /// Expected format of the body.
    pub json: JsonPolicy,
}

/// Format that a handler expects of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonPolicy {
    /// `payload` is null where the body is not JSON.
    #[default]
    Optional,
    /// A body that is not JSON (or none that PostgreSQL can hold) is dead-lettered as `invalid_json`.
    Required,
    /// The body is not parsed; `payload` is always null.
    Off,
}

impl SqlFunction {
    /// Returns whether `name` is a schema-qualified SQL name. Detects typing errors; PostgreSQL alone resolves the name.
    #[must_use]
    pub fn is_qualified_name(name: &str) -> bool {
        let mut parts = 0;
        let mut remainder = name;
        loop {
            let after = if let Some(quoted) = remainder.strip_prefix('"') {
                match quoted.split_once('"') {
                    Some((inner, after)) if !inner.is_empty() && !inner.contains('\0') => after,
                    _ => return false,
                }
            } else {
                let end = remainder
                    .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))
                    .unwrap_or(remainder.len());
                let is_start_valid = remainder.starts_with(|c: char| c.is_alphabetic() || c == '_');
                if !is_start_valid {
                    return false;
                }
                &remainder[end..]
            };
            parts += 1;
            if after.is_empty() {
                return parts == 2;
            }
            match after.strip_prefix('.') {
                Some(next) => remainder = next,
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SqlFunction;

    #[test]
    fn a_handler_is_a_schema_and_a_name() {
        for good in ["app.capture_payment", "App.Capture", "\"My Schema\".\"fn; drop\"", "_a.b$1"] {
            assert!(SqlFunction::is_qualified_name(good), "{good}");
        }
        for bad in [
            "",
            "capture",
            "app.",
            ".x",
            "a.b.c",
            "app.f()",
            "app.f; drop table x",
            "1a.b",
            "\"a.b",
            "\"\".b",
            "a b.c",
        ] {
            assert!(!SqlFunction::is_qualified_name(bad), "{bad}");
        }
    }
}
