//! Parses the key that a client sends: draft-ietf-httpapi-idempotency-key-header-07, section 2.1.

use http::HeaderMap;
use sfv::{BareItem, Item, Parser};

use oncely_core::identity::{IdentityError, IdentityPart};

#[doc(hidden)]
pub const HEADER: &str = "idempotency-key";

/// Error of a missing or invalid key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    Missing,
    Invalid(String),
}

impl From<IdentityError> for KeyError {
    fn from(error: IdentityError) -> Self {
        Self::Invalid(format!("the key {error}"))
    }
}

/// Parses the key of a request: a string of RFC 8941, as in the draft, or the bare characters, as most clients send it; both mean the same
/// key.
pub(super) fn parse_key(headers: &HeaderMap) -> Result<IdentityPart, KeyError> {
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or(KeyError::Missing)?.as_bytes();
    if values.next().is_some() {
        return Err(KeyError::Invalid("the header was sent twice".to_owned()));
    }
    if value.starts_with(b"\"") {
        let item: Item = Parser::new(value).parse().map_err(|_| build_malformed_key_error())?;
        let BareItem::String(key) = item.bare_item else { return Err(build_malformed_key_error()) };
        return Ok(IdentityPart::new(key.as_str().as_bytes())?);
    }
    // A comma means that a proxy has joined two headers.
    if value.iter().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b',' | b'"')) {
        return Err(build_malformed_key_error());
    }
    Ok(IdentityPart::new(value)?)
}

/// Builds the error of a key that is neither a quoted string nor bare characters.
fn build_malformed_key_error() -> KeyError {
    KeyError::Invalid(
        "the key is neither a quoted string (RFC 8941) nor visible ASCII without blanks, commas and quotes"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[&[u8]]) -> Result<String, KeyError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        parse_key(&headers).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn a_key_is_quoted_or_bare() {
        assert_eq!(of(&[b"8e03978e-40d5-43e8-bc93-6894a57f9324"]).unwrap().len(), 36);
        assert_eq!(of(&[br#""order 7, \"again\"""#]).unwrap(), r#"order 7, "again""#);
        assert_eq!(of(&[b"\"a\""]), of(&[b"a"]));
        assert_eq!(of(&[b"\"a\";as=param"]), of(&[b"a"]), "parameters say nothing of the key");
        assert_eq!(of(&[b"eyJhIjoxfQ=="]).unwrap(), "eyJhIjoxfQ==");
    }

    #[test]
    fn what_could_be_two_keys_or_none_is_refused() {
        assert_eq!(of(&[]), Err(KeyError::Missing));
        let long = vec![b'k'; 256];
        let quoted = [b"\"", &long[..], b"\""].concat();
        let wrong: [&[&[u8]]; 13] = [
            &[b""],
            &[b"\"\""],
            &[&long],
            &[&quoted],
            &[b"a", b"a"],
            &[b"a,b"],
            &[b"\"a\", \"b\""],
            &[b"a b"],
            &[b"a\tb"],
            &[b"\"a"],
            &[b"\"a\tb\""],
            &["schlüssel".as_bytes()],
            &[b"\"a\" b"],
        ];
        for values in wrong {
            assert!(matches!(of(values), Err(KeyError::Invalid(_))), "{values:?}: {:?}", of(values));
        }
        assert!(of(&[&long[..255]]).is_ok());
    }
}
