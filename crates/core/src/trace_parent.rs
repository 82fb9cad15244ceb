//! W3C trace context of a message.

/// Content of a `traceparent` header: trace, sending span, and whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent<'a> {
    /// 32 hexadecimal digits, not all zero.
    pub trace_id: &'a str,
    /// 16 hexadecimal digits, not all zero.
    pub span_id: &'a str,
    /// Whether the sender records its span.
    pub sampled: bool,
}

/// Length of version, trace, span and flags with their dashes.
const BASE_LENGTH: usize = 55;

impl<'a> TraceParent<'a> {
    /// Parses the header; `None` if it is invalid. Later versions may have more at the end.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (base, extension) = text.split_at_checked(BASE_LENGTH)?;
        let mut fields = base.split('-');
        let (version, trace_id, span_id, flags) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let is_whole = extension.is_empty() || version != "00" && extension.starts_with('-');
        let is_valid = is_whole
            && fields.next().is_none()
            && is_hex(version, 2)
            && version != "ff"
            && is_id(trace_id, 32)
            && is_id(span_id, 16)
            && is_hex(flags, 2);
        let sampled = is_valid && u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        is_valid.then_some(Self { trace_id, span_id, sampled })
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_id(text: &str, length: usize) -> bool {
    is_hex(text, length) && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_valid_header_says_trace_span_and_whether_it_is_sampled() {
        for (text, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), false),
            (format!("00-{TRACE}-{SPAN}-fe"), false),
            (format!("01-{TRACE}-{SPAN}-03"), true),
            (format!("01-{TRACE}-{SPAN}-01-more"), true),
        ] {
            let expected = TraceParent { trace_id: TRACE, span_id: SPAN, sampled };
            assert_eq!(TraceParent::parse(&text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_trace_context_is_none() {
        let zero = "0".repeat(32);
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0x-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}é-01", &SPAN[..14]),
            format!("00-{TRACE}-{SPAN}-0é"),
        ] {
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }
}
