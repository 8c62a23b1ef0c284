//! Display of user input and of a store's responses.

/// A text that may contain URLs, without their passwords, because it may end up in a log.
pub fn redact_passwords(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ends = |c: char| c.is_whitespace() || "/?#\"'".contains(c);
        let (authority, rest) = part.split_at(part.find(ends).unwrap_or(part.len()));
        let user = authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host)));
        shown.push_str("://");
        match user {
            Some((user, host)) => shown.extend([user, ":***@", host]),
            None => shown.push_str(authority),
        }
        shown.push_str(rest);
    }
    shown
}

/// The text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches passwords that are shown, and texts that are changed although they contain none.
    #[test]
    fn passwords_are_hidden() {
        for (text, shown) in [
            ("https://u:SECRET@h/x?a@b", "https://u:***@h/x?a@b"),
            ("s3://u:SEC@RET@b", "s3://u:***@b"),
            ("GET https://:SECRET@h:80/a:b@c \"s3://u:SECRET@b\"", "GET https://:***@h:80/a:b@c \"s3://u:***@b\""),
            ("abfss://container@account/a:b@c", "abfss://container@account/a:b@c"),
            ("/a:b@c", "/a:b@c"),
        ] {
            assert_eq!(redact_passwords(text), shown);
        }
    }
}
