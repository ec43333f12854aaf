// An endpoint that verifies and deduplicates:  WEBHOOK_SECRET=whsec_… go run receive.go [PORT]
//
// Needs `go mod init example && go get github.com/standard-webhooks/standard-webhooks/libraries`. Ends after EXPECT events, if that is set.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

type endpoint struct {
	webhook *standardwebhooks.Webhook
	mutex   sync.Mutex
	seen    map[string]bool // in a real service: a table, written in the transaction that does the work
	expect  int
	done    chan struct{}
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := e.webhook.Verify(body, r.Header); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized) // a 4xx is not tried again
		return
	}
	var event struct {
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(body, &event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id := r.Header.Get("webhook-id") // the same on every attempt
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if !e.seen[id] {
		e.seen[id] = true
		fmt.Println("received", r.Header.Get("x-event-type"), string(event.Payload))
		if len(e.seen) == e.expect {
			close(e.done)
		}
	}
	w.WriteHeader(http.StatusOK) // 5xx, 429 or {"status": "RETRY"} would have it sent again
}

func main() {
	webhook, err := standardwebhooks.NewWebhook(os.Getenv("WEBHOOK_SECRET"))
	if err != nil {
		log.Fatal(err)
	}
	port := "0"
	if len(os.Args) > 1 {
		port = os.Args[1]
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	expect, _ := strconv.Atoi(os.Getenv("EXPECT"))
	here := &endpoint{webhook: webhook, seen: map[string]bool{}, expect: expect, done: make(chan struct{})}
	server := &http.Server{Handler: here}
	fmt.Printf("listening on http://%s/\n", listener.Addr())
	go server.Serve(listener)
	<-here.done
	server.Shutdown(context.Background()) // what is being answered is answered
}
