//! Files and folders as they must be, and every way in which they can be wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::path::{Path, PathBuf};

use super::*;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder of ours with mode 0755, containing a file with mode 0600.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    let path = folder.path().join("file");
    std::fs::write(&path, "text").unwrap();
    set_mode(&path, 0o600);
    (folder, path)
}

fn refused(trust: &FileTrust, path: &Path, content: Content) -> String {
    trust.check(path, content).unwrap_err().to_string()
}

#[test]
fn a_file_or_folder_that_others_can_write_is_not_believed() {
    let (folder, path) = place();
    let trust = FileTrust::default();
    for mode in [0o600, 0o644, 0o640, 0o444] {
        set_mode(&path, mode);
        assert!(trust.check(&path, Content::Public).is_ok(), "{mode:o}");
    }
    let metadata = std::fs::metadata(&path).unwrap();
    // On a machine that gives each user a private group, this group is ours alone.
    let private = group::is_private(metadata.uid(), metadata.gid());
    for mode in [0o666, 0o664, 0o646, 0o602] {
        set_mode(&path, mode);
        if private && mode == 0o664 {
            assert!(trust.check(&path, Content::Public).is_ok());
            continue;
        }
        let said = refused(&trust, &path, Content::Public);
        assert!(said.contains("chmod go-w") && said.contains("file"), "{said}");
    }
    set_mode(&path, 0o600);
    for mode in [0o777, 0o775, 0o757] {
        set_mode(folder.path(), mode);
        if private && mode == 0o775 {
            assert!(trust.check(&path, Content::Secret).is_ok());
            continue;
        }
        let said = refused(&trust, &path, Content::Secret);
        assert!(said.contains("chmod go-w") && !said.contains("/file"), "{said}");
    }
    set_mode(folder.path(), 0o1777);
    assert!(trust.check(&path, Content::Secret).is_ok(), "as in /tmp");
}

#[test]
fn a_secret_is_for_its_owner_alone() {
    let (_folder, path) = place();
    for mode in [0o640, 0o604, 0o644, 0o660] {
        set_mode(&path, mode);
        assert!(refused(&FileTrust::default(), &path, Content::Secret).contains("chmod 600"), "{mode:o}");
    }
}

#[test]
fn a_group_that_is_named_counts_as_the_owner() {
    let (_folder, path) = place();
    let group = std::fs::metadata(&path).unwrap().gid();
    let trust = FileTrust { trust_groups: vec![group], ..FileTrust::default() };
    set_mode(&path, 0o660);
    assert!(trust.check(&path, Content::Secret).is_ok());
    set_mode(&path, 0o664);
    assert!(refused(&trust, &path, Content::Secret).contains("chmod 600"));
    assert!(trust.check(&path, Content::Public).is_ok());
    let other = FileTrust { trust_groups: vec![group + 1], ..FileTrust::default() };
    let private = group::is_private(std::fs::metadata(&path).unwrap().uid(), group);
    assert!(private || refused(&other, &path, Content::Public).contains("chmod go-w"));
}

/// Only root can give a file to another user, so the rest of the rule is tested separately, too.
#[test]
fn the_owner_is_us_or_root_or_named() {
    let (_folder, path) = place();
    let (ours, stranger) = (rustix::process::geteuid().as_raw(), 12_345);
    assert!(FileTrust::default().check(Path::new("/etc/passwd"), Content::Public).is_ok(), "root's");
    for (owner, expected) in [(0, true), (ours, true), (stranger, false)] {
        assert_eq!(FileTrust::default().believes(owner), expected, "{owner}");
    }
    assert!(FileTrust { trust_users: vec![stranger], ..FileTrust::default() }.believes(stranger));
    if ours == 0 {
        std::os::unix::fs::chown(&path, Some(stranger), None).unwrap();
        let said = refused(&FileTrust::default(), &path, Content::Secret);
        assert!(said.contains("12345") && said.contains("chown"), "{said}");
        let trust = FileTrust { trust_users: vec![stranger], ..FileTrust::default() };
        assert!(trust.check(&path, Content::Secret).is_ok());
    }
}

#[test]
fn links_are_followed_to_where_the_file_lies() {
    let (folder, path) = place();
    let elsewhere = tempfile::tempdir().unwrap();
    set_mode(elsewhere.path(), 0o755);
    let link = elsewhere.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(FileTrust::default().check(&link, Content::Secret).is_ok());
    set_mode(folder.path(), 0o777);
    assert!(refused(&FileTrust::default(), &link, Content::Secret).contains("chmod go-w"), "where it lies");
    set_mode(folder.path(), 0o755);
    set_mode(elsewhere.path(), 0o777);
    assert!(refused(&FileTrust::default(), &link, Content::Secret).contains("chmod go-w"), "where it is named");
    set_mode(elsewhere.path(), 0o755);
    symlink("round", elsewhere.path().join("round")).unwrap();
    let said = refused(&FileTrust::default(), &elsewhere.path().join("round/file"), Content::Public);
    assert!(said.contains("symbolic links"), "{said}");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        assert!(refused(&FileTrust::default(), &link, Content::Secret).contains("user 12345"), "whose link it is");
    }
}

/// In a container every process may have the same id.
#[test]
fn what_a_killed_process_has_left_behind_is_in_nobodys_way() {
    let (folder, path) = place();
    let left = folder.path().join(format!("file.{}.new", std::process::id()));
    std::fs::write(&left, "left behind").unwrap();
    write_public(&path, "one").unwrap();
    write_secret(&path, "two", true).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    // It may belong to a process that is still writing.
    assert_eq!(std::fs::read_to_string(&left).unwrap(), "left behind");
}

#[test]
fn what_a_link_leads_to_is_replaced_and_not_the_link() {
    let (folder, path) = place();
    let link = folder.path().join("link");
    symlink("file", &link).unwrap();
    write_secret(&link, "secret", true).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
    write_public(&link, "public").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "public");
    assert!(link.is_symlink() && !path.is_symlink());
    assert_eq!(locate_file(&link).unwrap(), locate_file(&path).unwrap());
    assert_eq!(locate_file(&folder.path().join("./new")).unwrap(), folder.path().canonicalize().unwrap().join("new"));

    // Somebody else's link could lead anywhere.
    set_mode(folder.path(), 0o777);
    assert!(write_public(&link, "x").unwrap_err().to_string().contains("chmod go-w"));
    set_mode(folder.path(), 0o755);
    std::fs::remove_file(&path).unwrap();
    for written in [write_secret(&link, "x", true), write_public(&link, "x")] {
        assert!(matches!(written, Err(SecretFileError::Nowhere { .. })), "{written:?}");
    }
    make_pipe(&path);
    for name in [&link, &path, folder.path()] {
        let said = write_public(name, "x").unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing was left behind");
}

/// A tree of our folders, each with mode 0755, with a file at the end; and the path to it.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one/two/three/file");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "text").unwrap();
    for way in path.ancestors().take_while(|way| way.starts_with(folder.path())) {
        set_mode(way, if way == path { 0o600 } else { 0o755 });
    }
    (folder, path)
}

#[test]
fn every_folder_on_the_way_is_judged() {
    let (folder, path) = tree();
    let trust = FileTrust::default();
    let by = |way: &str| folder.path().join(way);
    symlink("one/two", by("relative")).unwrap();
    symlink(by("one/two"), by("absolute")).unwrap();
    let (relative, absolute, up) =
        (by("relative/three/file"), by("absolute/three/file"), by("one/two/three/../../two/three/file"));
    for way in [&path, &relative, &absolute, &up] {
        assert_eq!(std::io::read_to_string(trust.open(way, Content::Secret).unwrap()).unwrap(), "text");
        for above in [by("one"), by("one/two"), folder.path().to_owned()] {
            set_mode(&above, 0o777);
            let said = refused(&trust, way, Content::Secret);
            assert!(said.ends_with(&format!("chmod go-w {}`", above.display())), "{said}");
            assert!(trust.check_folder(way.parent().unwrap()).is_err(), "{}", way.display());
            set_mode(&above, 0o1777);
            assert!(trust.check(way, Content::Secret).is_ok() && trust.check_folder(way.parent().unwrap()).is_ok());
            set_mode(&above, 0o755);
        }
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(by("one"), Some(12_345), None).unwrap();
        assert!(refused(&trust, &path, Content::Secret).contains("user 12345"));
        assert!(FileTrust { trust_users: vec![12_345], ..trust }.check(&path, Content::Secret).is_ok());
    }
}

#[test]
fn what_was_judged_is_what_is_read_whatever_is_exchanged_meanwhile() {
    let (folder, path) = tree();
    let trust = FileTrust::default();
    let (file, opened) =
        (trust.open(&path, Content::Secret).unwrap(), Folder::open(path.parent().unwrap(), Some(&trust)).unwrap());
    // A folder further up is replaced by another one, with a file of the same name.
    std::fs::rename(folder.path().join("one"), folder.path().join("away")).unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "forged").unwrap();
    assert_eq!(opened.names().unwrap(), ["file"]);
    let Entry::File(found) = opened.entry("file".as_ref()).unwrap() else { panic!("it is a file") };
    for file in [file, found] {
        assert_eq!(std::io::read_to_string(file).unwrap(), "text");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_handle_that_we_were_given_is_judged_as_what_it_is() {
    use std::os::fd::AsRawFd as _;
    let (_folder, path) = place();
    let file = File::open(&path).unwrap();
    let handle = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
    assert!(FileTrust::default().check(&handle, Content::Secret).is_ok());
    set_mode(&path, 0o640);
    assert!(refused(&FileTrust::default(), &handle, Content::Secret).contains("chmod 600"));
    let (read, _write) = std::io::pipe().unwrap();
    let handle = PathBuf::from(format!("/proc/self/fd/{}", read.as_raw_fd()));
    assert!(FileTrust::default().check(&handle, Content::Secret).is_ok(), "a pipe lies nowhere");
}

#[test]
fn everything_in_a_folder_of_policies_is_judged() {
    let (folder, path) = place();
    let trust = FileTrust::default();
    let policies = folder.path().join("policies");
    let file = policies.join("team/math.toml");
    std::fs::create_dir_all(policies.join("team")).unwrap();
    std::fs::write(&file, "").unwrap();
    std::fs::write(policies.join(".swp"), "").unwrap();
    set_mode(&policies.join(".swp"), 0o666);
    for path in [&policies, &policies.join("team")] {
        set_mode(path, 0o755);
    }
    set_mode(&file, 0o644);
    trust.check_folder(&policies).unwrap();
    for (path, good, bad) in [
        (policies.clone(), 0o755, 0o777),
        // The sticky bit does not keep others from adding a policy.
        (policies.clone(), 0o755, 0o1777),
        (policies.join("team"), 0o755, 0o775),
        (file.clone(), 0o644, 0o666),
        (folder.path().to_owned(), 0o755, 0o777),
    ] {
        set_mode(&path, bad);
        let said = trust.check_folder(&policies).unwrap_err().to_string();
        assert!(said.contains(&format!("{bad:04o}")), "{said}");
        set_mode(&path, good);
    }
    symlink(&path, policies.join("linked.toml")).unwrap();
    trust.check_folder(&policies).unwrap();
    set_mode(&path, 0o602);
    assert!(trust.check_folder(&policies).is_err());
    assert!(trust.check_folder(&folder.path().join("none")).is_ok(), "the loader says that it is missing");
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(path).status().unwrap().success());
}

/// The error, within a time in which nobody has written to any pipe.
fn refused_at_once(path: &Path, content: Content) -> String {
    let (tell, told) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || tell.send(refused(&FileTrust::default(), &path, content)));
    told.recv_timeout(std::time::Duration::from_secs(60)).unwrap_or_else(|_| panic!("a pipe is waited for"))
}

#[test]
fn a_pipe_or_device_under_a_name_is_refused_and_not_waited_for() {
    let (folder, path) = place();
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    make_pipe(&pipe);
    symlink(&pipe, &link).unwrap();
    for (at, shown) in [(&pipe, &pipe), (&link, &pipe), (&PathBuf::from("/dev/null"), &PathBuf::from("/dev/null"))] {
        for content in [Content::Secret, Content::Public] {
            assert_eq!(refused_at_once(at, content), format!("`{}` is no regular file", shown.display()));
        }
    }
    assert!(FileTrust::default().check(&path, Content::Secret).is_ok());
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_that_we_were_given_is_waited_for() {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let (read, mut write) = std::io::pipe().unwrap();
    let handle = PathBuf::from(format!("/dev/fd/{}", read.as_raw_fd()));
    let late = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        write.write_all(b"text").unwrap();
    });
    let text = read_trusted(&handle, Content::Secret, &FileTrust::default());
    assert_eq!(text.unwrap().as_str(), "text");
    late.join().unwrap();
}
