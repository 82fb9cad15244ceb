//! What a query or a form says.

use url::form_urlencoded;

/// Names and values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// From `name=value&…`. Bytes that are no UTF-8, and NUL, which no text in PostgreSQL holds, become a sign that is in no key.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let clean = |text: &str| text.replace('\0', "\u{fffd}");
        Self(form_urlencoded::parse(text).map(|(name, value)| (clean(&name), clean(&value))).collect())
    }

    /// A value as it was given; `None` where there is none, or it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    }

    /// The same without white space round it.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// The same, owned.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// Is it said at all, be it empty?
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
        assert_eq!((parameters.get("space"), parameters.word("space")), (Some(" x "), Some("x")));
    }
}
