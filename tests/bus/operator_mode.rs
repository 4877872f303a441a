//! A broker in operator mode: service, replay guard and client have nothing but `.creds` files.

use std::path::Path;
use std::time::Duration;

use sealwire::serve::State;
use sealwire::{BusConfig, Client, ClientError, Credentials, Name};
use sealwire_testkit::operator::{Operator, UserClaims};
use sealwire_testkit::site::{Served, Site, agent_key, methods};
use sealwire_testkit::{NatsServer, SOON, within};

/// The service's user, its guard's, and an agent's, with the permissions of SPEC.md §19.
fn users(age_s: i64, life_s: i64) -> [(&'static str, UserClaims); 3] {
    let user = |name: &str, publish: &[&str], subscribe: &[&str]| UserClaims {
        publish: publish.iter().map(ToString::to_string).collect(),
        subscribe: subscribe.iter().map(ToString::to_string).collect(),
        age_s,
        ..UserClaims::lasting(name, life_s)
    };
    [
        (
            "service.creds",
            user(
                "service",
                &["_INBOX.>", "_SVC.site.replica.>"],
                &["rpc.v1.site.>", "rpc.v1-ctl.site.>", "_SVC.site.replica.>", "$SRV.>"],
            ),
        ),
        ("guard.creds", user("guard", &["$JS.API.STREAM.>", "rg.test.site.>"], &["_SVC.site.guard.>"])),
        ("ann.creds", user("ann", &["rpc.v1.*.ann", "rpc.v1.*.ann.>"], &["_INBOX.ann.>"])),
    ]
}

fn write(operator: &Operator, folder: &Path, users: [(&'static str, UserClaims); 3]) {
    for (file, user) in users {
        operator.write_creds(&folder.join(file), &user);
    }
}

/// A service whose files name nothing else.
async fn serve(site: &Site, url: &str) -> Served {
    site.write_config(&format!(
        "guard = \"shared\"\nanswer_within_ms = 1000\n[replay.nats]\nurls = [\"{url}\"]\ncreds_file = \"guard.creds\"\n"
    ));
    let config = site.path("sealwire.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace("[keys]", "creds_file = \"service.creds\"\n[keys]");
    std::fs::write(&config, text).unwrap();
    site.serve(methods()).await
}

async fn client(site: &Site, url: &str) -> Client {
    let bus = BusConfig { creds_file: Some("ann.creds".into()), ..BusConfig::open(url) };
    let name = |text| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
    let path = site.path("ann.creds.json");
    credentials.token(site.token("ann", &["worker"])).save(&path, true).unwrap();
    // Relative names in the file start from its folder.
    let credentials = Credentials::load(&path).unwrap();
    assert!(!format!("{credentials:?}").contains("SU"));
    within(SOON, Client::builder(credentials).connect()).await.unwrap()
}

async fn add(client: &Client) -> Result<i64, ClientError> {
    within(SOON, client.call("site", "site/add", (1, 2))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_guard_and_client_join_with_creds_files_alone() {
    let operator = Operator::new();
    let server = NatsServer::start_with(&operator.config()).await;
    let site = Site::new(&server.url());
    write(&operator, site.folder.path(), users(0, 3600));
    let served = serve(&site, &server.url()).await;
    let client = client(&site, &server.url()).await;
    assert_eq!(add(&client).await.unwrap(), 3);
    served.stop().await.unwrap();
}

/// All three logins end while the service runs, and again with files that were replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_that_end_are_followed_by_those_in_the_replaced_files() {
    let operator = Operator::new();
    let server = NatsServer::start_with(&operator.config()).await;
    let site = Site::new(&server.url());
    // Long enough for a busy machine to start the service and to call it.
    write(&operator, site.folder.path(), users(0, 25));
    let served = serve(&site, &server.url()).await;
    let client = client(&site, &server.url()).await;
    assert_eq!(add(&client).await.unwrap(), 3);
    // Nobody replaces the files in time.
    served.reaches(|state| matches!(state, State::Interrupted(_))).await;
    assert!(add(&client).await.is_err());
    write(&operator, site.folder.path(), users(0, 3600));
    served.ready().await;
    let works = async {
        while add(&client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(2 * SOON, works).await;
    served.stop().await.unwrap();
}
