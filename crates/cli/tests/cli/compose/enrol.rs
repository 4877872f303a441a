//! An agent that creates its own key: the blocks of docs/cluster.md about it, unchanged, up to its first answer.
//! Never copies anything except through the pipes that the page shows.

use sealwire::internal::wire::KeyRequest;
use sealwire_testkit::page;

use super::pages::{CLUSTER, Pages};
use super::stack::{Stack, say};

pub(crate) fn agent_enrols_by_its_public_key(stack: &Stack, pages: &Pages) {
    let blocks = page::blocks(page::section(CLUSTER, "Enrol an agent by its public key"));
    let blocks: Vec<String> = blocks.filter(|block| block.info == "text").map(|block| block.text()).collect();
    let [asks, enrols, calls] = &blocks[..] else { panic!("three blocks, not {blocks:#?}") };
    let folder = tempfile::tempdir().unwrap();
    let run = |lines: &str| drop(pages.run_block(stack, folder.path(), lines));

    run(asks);
    let request = std::fs::read_to_string(folder.path().join("robot.request")).unwrap();
    run(&enrols.replace('…', &KeyRequest::verify(&request).unwrap().thumbprint()));
    // The bus has no way out, so the agent runs on the bus's network. Everything else of it is here.
    let on_the_bus =
        "docker compose run --rm -T --user \"$(id -u)\" --volume \"$PWD:$PWD\" --workdir \"$PWD\" operator call";
    assert!(calls.contains("sealwire call "));
    run(&calls.replace("sealwire call", on_the_bus));
    say("an agent that made its own key was enrolled through pipes, and answered");
}
