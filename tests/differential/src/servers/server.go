// SPDX-License-Identifier: Apache-2.0 OR MIT

// Go's net/http: the path decoded by the library and resolved here, the host as the library has it.
package main

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
)

func what(r *http.Request) string {
	target := path.Clean(r.URL.Path)
	if strings.HasPrefix(target, "/marker") {
		return "@MARKER@"
	}
	host := strings.ToLower(r.Host)
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.HasPrefix(target, "/secret") || host == "secret.example" || r.Header.Get("X-Secret") == "yes" {
		return "@REFUSED@"
	}
	return "@PLAIN@"
}

func names(port string) {
	certificate := func(name string) *tls.Certificate {
		pair, err := tls.LoadX509KeyPair("@ROOT@/"+name+".pem", "@ROOT@/"+name+".pem")
		if err != nil {
			log.Fatal(err)
		}
		return &pair
	}
	plain, secret := certificate("plain"), certificate("secret")
	config := &tls.Config{MaxVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if strings.EqualFold(hello.ServerName, "secret.example") {
			return secret, nil
		}
		return plain, nil
	}}
	server := &http.Server{Addr: "0.0.0.0:" + port, TLSConfig: config}
	server.ListenAndServeTLS("", "")
}

func main() {
	log.SetOutput(io.Discard)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, what(r)) })
	for _, port := range []string{"@TLS@", "@TLS-OPEN@"} {
		go names(port)
	}
	for _, port := range os.Args[2:] {
		go http.ListenAndServe("0.0.0.0:"+port, handler)
	}
	http.ListenAndServe("0.0.0.0:"+os.Args[1], handler)
}
