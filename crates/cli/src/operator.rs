//! The operator's name, which is recorded with each action.

use std::sync::OnceLock;

/// The operator's name, from the command line.
static OPERATOR: OnceLock<String> = OnceLock::new();

/// Sets the operator for the rest of the process; only the first call counts.
pub(super) fn set(operator: String) {
    OPERATOR.get_or_init(|| operator);
}

/// Validates an operator's name: not empty, at most 255 bytes.
pub(super) fn parse(name: &str) -> Result<String, String> {
    match name.trim() {
        "" => Err("it is empty".to_owned()),
        name if name.len() > 255 => Err("it has more than 255 bytes".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Returns the operator's name for records: the one of the command line. Falls back to the login name in the environment, then to the name
/// in /etc/passwd, then to the user id.
pub(super) fn name() -> String {
    let configured = || OPERATOR.get().cloned();
    let environment_name =
        || ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let system_name = || {
        let uid = rustix::process::getuid().as_raw();
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        find_user_name(&users, uid).unwrap_or_else(|| format!("uid {uid}"))
    };
    configured().or_else(|| environment_name().filter(|name| !name.is_empty())).unwrap_or_else(system_name)
}

/// Finds the name of a user id in a text with the format of /etc/passwd; `None` if it has no such user.
fn find_user_name(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let found = fields.nth(1)?.parse() == Ok(uid);
        found.then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_number_has_the_name_of_its_line() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbroken\n:x:7:7::/:\noncely:x:999:999::/var/lib/oncely:/usr/sbin/nologin\n";
        assert_eq!(find_user_name(users, 999).as_deref(), Some("oncely"));
        assert_eq!(find_user_name(users, 0).as_deref(), Some("root"));
        assert_eq!(find_user_name(users, 7), None);
    }
}
