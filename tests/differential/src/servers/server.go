// SPDX-License-Identifier: Apache-2.0 OR MIT

// Go's net/http: the path decoded by the library and resolved here, the host as the library has it.
package main

import (
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

func main() {
	log.SetOutput(io.Discard)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, what(r)) })
	for _, port := range os.Args[2:] {
		go http.ListenAndServe("0.0.0.0:"+port, handler)
	}
	http.ListenAndServe("0.0.0.0:"+os.Args[1], handler)
}
