//! Describes SQLSTATEs in Oncely's own words: PostgreSQL's text may contain data of the message.

/// Describes the condition of a SQLSTATE, or that of its class if the code has no text of its own here. Source: PostgreSQL's Appendix A.
pub(super) fn describe_condition(code: &str) -> &'static str {
    match code {
        "0A000" => "feature not supported",
        "21000" => "cardinality violation",
        "22001" => "text too long for its column",
        "22003" => "numeric value out of range",
        "22004" | "22002" => "null value not allowed",
        "22007" => "invalid datetime format",
        "22008" => "datetime field overflow",
        "22012" => "division by zero",
        "22021" => "character not in repertoire",
        "22023" => "invalid parameter value",
        "2200H" => "sequence exhausted",
        "22P02" => "invalid text representation",
        "22P03" => "invalid binary representation",
        "22P05" => "untranslatable character",
        "22030" => "duplicate JSON object key",
        "22032" => "invalid JSON text",
        "23001" => "restrict violation",
        "23502" => "not-null violation",
        "23503" => "foreign key violation",
        "23505" => "unique violation",
        "23514" => "check violation",
        "23P01" => "exclusion violation",
        "25006" => "read-only transaction",
        "25P02" => "the transaction is aborted",
        "25P03" => "the transaction was idle for too long",
        "25P04" => "the transaction took too long",
        "26000" => "the prepared statement is gone",
        "40001" => "serialization failure",
        "40P01" => "deadlock",
        "42501" => "insufficient privilege",
        "42601" => "syntax error",
        "42702" | "42725" => "ambiguous name",
        "42703" => "undefined column",
        "42704" => "undefined object",
        "42804" => "datatype mismatch",
        "42883" => "undefined function",
        "42P01" => "undefined table",
        "42P07" => "the table exists already",
        "42710" => "the object exists already",
        "3F000" => "undefined schema",
        "53100" => "disk full",
        "53200" => "out of memory",
        "53300" => "too many connections",
        "54000" => "a limit of PostgreSQL is exceeded",
        "54001" => "statement too complex",
        "55000" => "object not in the state that this needs",
        "55006" => "object in use",
        "55P03" => "lock not available",
        "57014" => "cancelled, or past its time",
        "57P01" | "57P02" | "57P03" => "the server is shutting down or starting",
        "58030" => "I/O error of the server",
        "P0002" => "the query returned no rows",
        "P0003" => "the query returned several rows",
        "XX001" | "XX002" => "data corrupted",
        _ => describe_class(code.get(..2).unwrap_or_default()),
    }
}

/// Describes a class of SQLSTATEs in PostgreSQL's words.
fn describe_class(class: &str) -> &'static str {
    match class {
        "08" => "connection failure",
        "22" => "data error",
        "23" => "integrity constraint violation",
        "25" => "invalid transaction state",
        "28" => "invalid authorization",
        "3D" => "undefined database",
        "40" => "transaction rolled back",
        "42" => "syntax error or missing right",
        "53" => "insufficient resources",
        "54" => "a limit of PostgreSQL is exceeded",
        "55" => "object not in the state that this needs",
        "57" => "operator intervention",
        "58" => "system error of the server",
        "HV" => "error of a foreign data wrapper",
        "XX" => "internal error of the server",
        _ => "error of PostgreSQL",
    }
}

/// Returns whether an application raised this code, so that a person wrote its text and not PostgreSQL: `raise exception` (P0001) and
/// `assert` (P0004), Oncely's (`ONC…`, `oncely.reject` among them), and every code of a class that PostgreSQL does not use.
pub(super) fn is_application_code(code: &str) -> bool {
    const SERVERS: [&str; 43] = [
        "00", "01", "02", "03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23",
        "24", "25", "26", "27", "28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44",
        "53", "54", "55", "57", "58", "72", "F0", "HV", "XX",
    ];
    match code {
        "P0001" | "P0004" => true,
        _ => code.get(..2).is_some_and(|class| code.len() == 5 && class != "P0" && !SERVERS.contains(&class)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_theirs_and_what_the_server_writes_is_put_into_our_words() {
        for written in ["P0001", "P0004", "ONC01", "ONC05", "U0001", "AB123"] {
            assert!(is_application_code(written), "{written}");
        }
        for server in ["22P02", "23505", "42P01", "P0002", "XX000", "HV000", "40001", "", "1"] {
            assert!(!is_application_code(server), "{server}");
        }
        assert_eq!(describe_condition("22012"), "division by zero");
        assert_eq!(describe_condition("22999"), "data error");
        assert_eq!(describe_condition("?"), "error of PostgreSQL");
    }
}
