package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// file is a configuration of a bench's store, with more behind it.
func (b *bench) file(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backend.toml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "store = %q\n%s", b.settings().cfg.Store, more), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const oneWorkspace = `
[runtimes.local]
socket = "/run/canary/socket"
[workspaces.default]
title = "New"
runtime = "local"
networks = ["none", "allowlist"]
network_rules = ["modules.example.org:443"]
[workspaces.default.repositories.more]
source = "/srv/canary/more"
`

// TestReload: what a new file says holds for the next request, without a restart; one
// with a mistake changes nothing and is told; what takes a restart stays and is named.
func TestReload(t *testing.T) {
	b := newBench(t, nil)
	repositories := func() string { return b.as("viewer", "GET", "/api/w/default/repositories", "").Body.String() }
	if got := repositories(); !strings.Contains(got, `"hello"`) {
		t.Fatalf("%s", got)
	}
	old := b.settings()
	if err := b.Reload(b.file(t, "[listen]\naddress = \"127.0.0.1:9\"\n[limits]\nburst = 300\n"+oneWorkspace)); err != nil {
		t.Fatal(err)
	}
	if got := repositories(); strings.Contains(got, `"hello"`) || !strings.Contains(got, `"more"`) {
		t.Errorf("the repositories are %s", got)
	}
	if got := b.as("viewer", "GET", "/api/w/default", "").Body.String(); !strings.Contains(got, "modules.example.org:443") || !strings.Contains(got, `"New"`) {
		t.Errorf("the workspace is %s", got)
	}
	now := b.settings()
	if _, ok := now.cfg.Workspaces["other"]; ok || now.runtimes["local"] != old.runtimes["local"] {
		t.Errorf("%+v", now.cfg)
	}
	if now.requests == old.requests || now.logins != old.logins {
		t.Error("a limit that changed is as it was, or one that did not begins anew")
	}
	if now.cfg.Listen.Address != old.cfg.Listen.Address {
		t.Errorf("it believes to be at %q", now.cfg.Listen.Address)
	}
	if s := b.statusLine(now); s != "1 workspace, 0 creations, 0 live streams; degraded: a restart is needed for listen.address" {
		t.Errorf("the status is %q", s)
	}
	if !slices.Contains(now.private, "/srv/canary/hello") {
		t.Error("what was not to be told may be told")
	}
	for mistake, more := range map[string]string{
		"unknown fields":    oneWorkspace + "\nnetwork_rulez = []\n",
		"no workspace":      "[runtimes.local]\nsocket = \"/run/canary/socket\"\n",
		"not valid TOML":    "[",
		"is not scheme://":  "[listen]\norigins = [\"https://x.example/path\"]\n" + oneWorkspace,
		"is no duration of": "[sessions]\nlifetime = \"1s\"\n" + oneWorkspace,
	} {
		err := b.Reload(b.file(t, more))
		if !errors.Is(err, policy.CodeConfigInvalid) || !strings.Contains(err.Error(), mistake) {
			t.Errorf("%s: %v", mistake, err)
		}
		if b.settings() != now || now.over.Err() != nil {
			t.Errorf("%s: it is in force", mistake)
		}
		if s := b.statusLine(now); !strings.Contains(s, "degraded: the configuration is not in force: ") || !strings.Contains(s, mistake) {
			t.Errorf("%s: the status is %q", mistake, s)
		}
	}
	if err := b.Reload(b.file(t, oneWorkspace)); err != nil {
		t.Fatal(err)
	}
	if s := b.statusLine(b.settings()); s != "1 workspace, 0 creations, 0 live streams" {
		t.Errorf("the status is %q", s)
	}
}

// endless is a Runtime whose timelines go on.
type endless struct{ *servicetest.Service }

func (e endless) Events(ctx context.Context, req runtime.EventsRequest, yield func(runtime.Event) bool) error {
	err := e.Service.Events(ctx, req, yield)
	<-ctx.Done()
	return err
}

// TestReloadTakesAway: who looked at what is allowed no more is cut off and refused.
func TestReloadTakesAway(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Listen.Address = "127.0.0.1:0" })
	at := b.serve(t).Addr().String()
	get := func(path string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+at+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+b.token["viewer"])
		r.Header.Set("Accept", "text/event-stream")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	b.settings().runtimes["local"] = endless{b.svc}
	const events = "/api/w/default/execution-workspaces/ws-0123456789abcdef/events"
	live := get(events)
	if live.StatusCode != 200 {
		t.Fatal(live.Status)
	}
	if err := b.Reload(b.file(t, "[listen]\naddress = \"127.0.0.1:0\"\n"+strings.ReplaceAll(oneWorkspace, "default", "another"))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		if _, err := live.Body.Read(buf); err != nil {
			break // by the end, or the test by its deadline
		}
	}
	if resp := get(events); resp.StatusCode != 404 {
		t.Errorf("asked again: %s", resp.Status)
	}
}

// TestReloadKeyPair: a renewed certificate is served without a restart.
func TestReloadKeyPair(t *testing.T) {
	cert, key, roots := keyPair(t)
	listen := ListenConfig{Address: "127.0.0.1:0", TLSCert: cert, TLSKey: key}
	b := newBench(t, func(c *Config) { c.Listen = listen })
	at := b.serve(t).Addr().String()
	hello := func() error {
		c, err := tls.Dial("tcp", at, &tls.Config{RootCAs: roots})
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := hello(); err != nil {
		t.Fatal(err)
	}
	cert, key, roots = keyPair(t)
	if hello() == nil {
		t.Error("the new certificate is served already")
	}
	if err := b.Reload(b.file(t, fmt.Sprintf("[listen]\naddress = %q\ntls_cert = %q\ntls_key = %q\n%s", listen.Address, cert, key, oneWorkspace))); err != nil {
		t.Fatal(err)
	}
	if err := hello(); err != nil {
		t.Error(err)
	}
	if err := b.Reload(b.file(t, fmt.Sprintf("[listen]\naddress = %q\ntls_cert = %q\ntls_key = %q\n%s", listen.Address, cert, cert, oneWorkspace))); !errors.Is(err, policy.CodeConfigInvalid) {
		t.Errorf("a certificate without its key: %v", err)
	}
	if err := hello(); err != nil {
		t.Error(err)
	}
}

// TestAlive: however it listens, it answers itself as long as its store answers.
func TestAlive(t *testing.T) {
	cert, key, _ := keyPair(t)
	for name, l := range map[string]ListenConfig{
		"loopback":   {Address: "127.0.0.1:0"},
		"IPv6":       {Address: "[::1]:0"},
		"everywhere": {Address: "0.0.0.0:0", TLSCert: cert, TLSKey: key},
		"TLS":        {Address: "127.0.0.1:0", TLSCert: cert, TLSKey: key},
		"socket":     {Socket: filepath.Join(t.TempDir(), "b.sock")},
		"proxy":      {Socket: filepath.Join(t.TempDir(), "b.sock"), Origins: []string{"https://yoi.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.Listen = l })
			at := b.serve(t)
			if s, err := b.Alive(t.Context(), at); err != nil || s != "2 workspaces, 0 creations, 0 live streams" {
				t.Errorf("%q, %v", s, err)
			}
			if calls := b.svc.Calls(); len(calls) != 0 {
				t.Errorf("it asks the Runtime: %v", calls)
			}
			if err := b.store.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err := b.Alive(t.Context(), at); err == nil {
				t.Errorf("without a store it is alive: %q", s)
			}
		})
	}
	b := newBench(t, nil)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := b.Alive(ctx, at); err == nil {
		t.Errorf("nobody serves, and it is alive: %q", s)
	}
}
