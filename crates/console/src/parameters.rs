//! Parameters of a query or a form.

use url::form_urlencoded;

/// Names and values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses `name=value&…`. Bytes that are not UTF-8, and NUL, which no text in PostgreSQL can hold, become U+FFFD.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let clean = |text: &str| text.replace('\0', "\u{fffd}");
        Self(form_urlencoded::parse(text).map(|(name, value)| (clean(&name), clean(&value))).collect())
    }

    /// Returns an unchanged value; `None` if it is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    }

    /// Returns a value without surrounding white space; `None` if it is missing or blank.
    pub(crate) fn get_trimmed(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// Returns an unchanged value as an owned text; `None` if it is missing or empty.
    pub(crate) fn get_owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// Returns whether the parameter is present, even if empty.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_comes_is_a_text_that_postgresql_takes() {
        let parameters = Parameters::parse(b"key=a%00b%2Fc&empty=&bad=%ff&key=second&space=+x+");
        assert_eq!(parameters.get("key"), Some("a\u{fffd}b/c"));
        assert_eq!(
            (parameters.get("empty"), parameters.has("empty"), parameters.has("none")),
            (None, true, false)
        );
        assert_eq!(parameters.get("bad"), Some("\u{fffd}"));
        assert_eq!((parameters.get("space"), parameters.get_trimmed("space")), (Some(" x "), Some("x")));
    }
}
