//! A certificate authority, a server certificate for this machine and a client's, made by `openssl` for one server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::process;

const EXTENSIONS: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1\n\
    basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n";

const CLIENT: &str =
    "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth\n";

/// The name in the client's certificate.
pub(crate) const CERTIFIED: &str = "certified";

#[derive(Debug)]
pub(crate) struct Certificates {
    ca: PathBuf,
    server: PathBuf,
    key: PathBuf,
    client: PathBuf,
    client_key: PathBuf,
}

impl Certificates {
    /// Makes them in the folder `tls` under `home`, with keys that only the owner can read. Valid for ten days.
    pub(crate) async fn make(home: &Path) -> Result<Self> {
        let folder = home.join("tls");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("server.ext"), EXTENSIONS)?;
        fs::write(folder.join("client.ext"), CLIENT)?;
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"];
        openssl(&folder, &key, "req -x509 -days 10 -subj /CN=postrider-test-ca -keyout ca.key -out ca.pem")
            .await?;
        openssl(&folder, &key, "req -subj /CN=localhost -keyout server.key -out server.csr").await?;
        let sign = "x509 -req -days 10 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                    -extfile server.ext -out server.pem";
        openssl(&folder, &[], sign).await?;
        let ask = format!("req -subj /CN={CERTIFIED} -keyout client.key -out client.csr");
        openssl(&folder, &key, &ask).await?;
        let sign = "x509 -req -days 10 -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                    -extfile client.ext -out client.pem";
        openssl(&folder, &[], sign).await?;
        Ok(Self {
            ca: folder.join("ca.pem"),
            server: folder.join("server.pem"),
            key: folder.join("server.key"),
            client: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        })
    }

    pub(crate) fn ca_file(&self) -> &Path {
        &self.ca
    }

    pub(crate) fn server_file(&self) -> &Path {
        &self.server
    }

    pub(crate) fn key_file(&self) -> &Path {
        &self.key
    }

    /// The client's certificate and its key.
    pub(crate) fn client_files(&self) -> (&Path, &Path) {
        (&self.client, &self.client_key)
    }
}

async fn openssl(folder: &Path, more: &[&str], words: &str) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(words.split_whitespace()).args(more).current_dir(folder);
    process::run(command).await.map(drop)
}
