//! A certificate authority and a server certificate for this machine, made by `openssl` for one server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::process;

const EXTENSIONS: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1\n\
    basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n";

#[derive(Debug)]
pub(crate) struct Certificates {
    ca: PathBuf,
    server: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// Makes them in the folder `tls` under `home`, with keys that only the owner can read. Valid for ten days.
    pub(crate) async fn make(home: &Path) -> Result<Self> {
        let folder = home.join("tls");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("server.ext"), EXTENSIONS)?;
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"];
        openssl(&folder, &key, "req -x509 -days 10 -subj /CN=postrider-test-ca -keyout ca.key -out ca.pem")
            .await?;
        openssl(&folder, &key, "req -subj /CN=localhost -keyout server.key -out server.csr").await?;
        let sign = "x509 -req -days 10 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                    -extfile server.ext -out server.pem";
        openssl(&folder, &[], sign).await?;
        Ok(Self {
            ca: folder.join("ca.pem"),
            server: folder.join("server.pem"),
            key: folder.join("server.key"),
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
}

async fn openssl(folder: &Path, more: &[&str], words: &str) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(words.split_whitespace()).args(more).current_dir(folder);
    process::run(command).await.map(drop)
}
