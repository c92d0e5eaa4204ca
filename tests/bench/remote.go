package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// remoteSnapshot is a host's first workspace, with nothing in any cache, from an
// HTTP store on the same machine; git clones from a git daemon there.
func remoteSnapshot(r *room) {
	fs := r.fs("ext4", 2048)
	src := r.source(fs, 10_000)
	store := filepath.Join(fs, "store")
	r.must(os.Mkdir(store, 0o755))
	r.yoi(filepath.Join(fs, "exporter"), "repo", "add", "--id", "bench", src)
	var s struct{ Digest string }
	r.must(json.Unmarshal([]byte(r.yoi(filepath.Join(fs, "exporter"), "snapshot", "export", "bench", "--to", store, "--json")), &s))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	srv := &http.Server{Handler: http.FileServer(http.Dir(store))}
	go func() { _ = srv.Serve(l) }() // until Close
	r.Cleanup(func() { r.must(srv.Close()) })
	git := r.gitDaemon(fs)
	clone, root := filepath.Join(fs, "clone"), filepath.Join(fs, "rt")
	own, peer := r.turns(r.runs(15),
		func() time.Duration {
			defer r.clear(fs, root)
			return timed(func() {
				r.yoi(root, "run", "--repo", "snapshot+http://"+l.Addr().String(), "--rev", "snapshot:"+s.Digest, "--strategy", "remote_snapshot", "--", "true")
			})
		},
		func() time.Duration {
			defer r.clear(fs, clone)
			return timed(func() { r.do("git", "clone", "--quiet", "--depth", "1", git+"/bench", clone) })
		})
	r.times("yoi run -- true, first workspace from remote_snapshot, 10,000 files", "git clone --depth 1 from the same host", 0.7, own, peer)
}

// clear removes what a turn made, and lets the disk come to rest.
func (r *room) clear(fs, dir string) {
	r.must(os.RemoveAll(dir))
	r.settle(fs)
}

// gitDaemon serves the repositories in dir on loopback and returns the URL.
func (r *room) gitDaemon(dir string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	r.must(err)
	addr := l.Addr().String()
	r.must(l.Close())
	_, port, _ := strings.Cut(addr, ":")
	// Not by way of git, which would stay between us and the process to end.
	daemon := filepath.Join(strings.TrimSpace(r.do("git", "--exec-path")), "git-daemon")
	cmd := r.command(daemon, "--listen=127.0.0.1", "--port="+port, "--base-path="+dir, "--export-all", "--reuseaddr")
	r.must(cmd.Start())
	r.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "git://" + addr
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.Fatal("git daemon does not listen")
	return ""
}
