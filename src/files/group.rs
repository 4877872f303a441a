//! Whether a group is private to its owner, as many systems create one per user: then its write permission is the owner's.
//! Never says so if this machine's own files may not know all members.

use std::path::Path;

/// Whether nobody but `owner` is in the group `gid`, according to the system's files. They are complete only if users
/// and groups come from no other source.
pub(super) fn is_private(owner: u32, gid: u32) -> bool {
    let read = |name: &str| std::fs::read_to_string(Path::new("/etc").join(name));
    let switch = match read("nsswitch.conf") {
        Ok(text) => text,
        // The C library's default: the files.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(_) => return false,
    };
    let (Ok(passwd), Ok(group)) = (read("passwd"), read("group")) else { return false };
    only_files(&switch) && alone(&passwd, &group, owner, gid)
}

/// Whether users and groups come from this machine's files. `systemd` only adds users of its own, with groups of their own.
fn only_files(switch: &str) -> bool {
    let lines = switch.lines().map(|line| line.split('#').next().unwrap_or_default());
    let sources = lines.filter_map(|line| line.trim().split_once(':'));
    let relevant = sources.filter(|(what, _)| ["passwd", "group", "initgroups"].contains(&what.trim()));
    relevant.into_iter().all(|(_, from)| from.split_whitespace().all(|source| ["files", "systemd"].contains(&source)))
}

/// Group 0 is never private: containers often add it to other users.
fn alone(passwd: &str, group: &str, owner: u32, gid: u32) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let users: Vec<(&str, Option<u32>, Option<u32>)> = passwd
        .lines()
        .filter_map(|line| {
            let mut parts = line.split(':');
            Some((parts.next()?, number(parts.nth(1)), number(parts.next())))
        })
        .collect();
    let mut primary = users.iter().filter(|(_, _, first)| *first == Some(gid));
    let (Some((name, Some(user), _)), None) = (primary.next(), primary.next()) else { return false };
    let mut groups = group.lines().filter_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (number(parts.nth(1)) == Some(gid)).then(|| (name, parts.next().unwrap_or_default()))
    });
    let (Some((group, members)), None) = (groups.next(), groups.next()) else { return false };
    let nobody_else = members.split(',').all(|member| member.is_empty() || member == *name);
    gid != 0 && *user == owner && group == *name && nobody_else
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:,,,:/home/ann:/bin/bash\n\
                          bob:x:1001:1001::/home/bob:/bin/sh\ncam:x:1002:100::/home/cam:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:\nann:x:1000:\nbob:x:1001:ann\n";

    #[test]
    fn a_group_is_private_if_nobody_but_its_user_is_in_it() {
        assert!(alone(PASSWD, GROUP, 1000, 1000));
        assert!(alone(PASSWD, &GROUP.replace("ann:x:1000:", "ann:x:1000:ann"), 1000, 1000));
        for (passwd, group, owner, gid, why) in [
            (PASSWD.to_owned(), GROUP.to_owned(), 1001, 1001, "somebody is a member"),
            (PASSWD.to_owned(), GROUP.to_owned(), 1001, 1000, "it is another user's"),
            (PASSWD.to_owned(), GROUP.to_owned(), 0, 0, "group 0"),
            (PASSWD.to_owned(), GROUP.to_owned(), 1002, 100, "a group of another name"),
            (PASSWD.to_owned(), GROUP.to_owned(), 7, 7, "nobody knows it"),
            (
                format!("{PASSWD}eve:x:1003:1000::/:/bin/sh\n"),
                GROUP.to_owned(),
                1000,
                1000,
                "another user begins in it",
            ),
            (PASSWD.to_owned(), format!("{GROUP}ann2:x:1000:eve\n"), 1000, 1000, "the number stands there twice"),
            (PASSWD.to_owned(), GROUP.replace("ann:x:1000", "staff:x:1000"), 1000, 1000, "another name"),
            (PASSWD.to_owned(), String::new(), 1000, 1000, "no group"),
        ] {
            assert!(!alone(&passwd, &group, owner, gid), "{why}");
        }
    }

    #[test]
    fn users_from_elsewhere_make_no_group_private() {
        for text in [
            "",
            "passwd: files systemd\ngroup:  files systemd\nhosts: files dns\n",
            "# passwd: ldap\ngroup: files # sss",
        ] {
            assert!(only_files(text), "{text}");
        }
        for text in ["passwd: files sss", "group: files [SUCCESS=merge] systemd", "passwd: compat", "initgroups: ldap"]
        {
            assert!(!only_files(text), "{text}");
        }
    }
}
