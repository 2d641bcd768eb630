// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request of HTTP/1 over TLS 1.3, with a whole handshake on each connection.
//!
//! The server is the lab's own, so its certificate is not checked: that work would be the load's, whose core must not be the
//! bottleneck.

use super::connection::Progress;
use super::response::Response;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, version};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

#[derive(Debug)]
pub struct Tls {
    connection: ClientConnection,
    sent: bool,
    response: Response,
}

impl Default for Tls {
    fn default() -> Tls {
        let name = ServerName::try_from("server").expect("it is a name");
        let connection = ClientConnection::new(config(), name).expect("the configuration has what TLS 1.3 needs");
        Tls { connection, sent: false, response: Response::default() }
    }
}

impl Tls {
    pub fn proceed(&mut self, mut socket: &TcpStream, request: &[u8], failed: bool, buffer: &mut [u8]) -> Progress {
        if !self.sent {
            // before the handshake's end it is kept until then
            if failed || self.connection.writer().write_all(request).is_err() {
                return Progress::Failed;
            }
            self.sent = true;
        }
        // An event is told of once: all that has come is read, the end too.
        loop {
            if !self.write(socket) {
                return Progress::Failed;
            }
            match self.connection.read_tls(&mut socket) {
                Ok(0) if self.response.ends_here() => return Progress::Complete(self.response.status()),
                Ok(0) => return Progress::Failed,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waiting,
                Err(_) => return Progress::Failed,
            }
            if self.connection.process_new_packets().is_err() {
                return Progress::Failed;
            }
            if let Some(progress) = self.read(buffer) {
                return progress;
            }
        }
    }

    /// Sends what there is room for; whether the connection lives.
    fn write(&mut self, mut socket: &TcpStream) -> bool {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Takes what has been decrypted; whether the response is complete with it.
    fn read(&mut self, buffer: &mut [u8]) -> Option<Progress> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(0) if self.response.ends_here() => return Some(Progress::Complete(self.response.status())),
                Ok(0) => return Some(Progress::Failed),
                Ok(length) if self.response.take(&buffer[..length]) => {
                    return Some(Progress::Complete(self.response.status()));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Progress::Failed),
            }
        }
    }

    /// For the next request, unless the response ended the connection.
    pub fn keep(&mut self) -> bool {
        self.sent = false;
        !std::mem::take(&mut self.response).closes()
    }
}

fn config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let provider = Arc::new(ring::default_provider());
        let own = Arc::new(OwnServer(Arc::clone(&provider)));
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&version::TLS13]).expect("the provider has TLS 1.3");
        let mut config = builder.dangerous().with_custom_certificate_verifier(own).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Arc::new(config)
    });
    Arc::clone(config)
}

/// Takes any certificate.
#[derive(Debug)]
struct OwnServer(Arc<CryptoProvider>);

impl ServerCertVerifier for OwnServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
