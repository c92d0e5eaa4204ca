package api

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

const (
	maxRefusals   = 16 // connections that are being told no at once
	refusalTime   = 2 * time.Second
	refusalHeader = 64 << 10
)

// guard is a listener that lets in only allowed peers, and only so many.
// Others are told why without a byte of theirs being parsed, and take none of
// the places.
type guard struct {
	net.Listener
	uids     []uint32
	gids     []uint32
	most     int64
	self     bool
	log      *slog.Logger
	open     atomic.Int64
	refusing atomic.Int64
	noted    atomic.Int64 // unix second of the last refusal in the log
}

type guardedConn struct {
	net.Conn
	peer Peer
	done sync.Once
	free func()
}

func (c *guardedConn) Close() error {
	err := c.Conn.Close()
	c.done.Do(c.free)
	return err
}

func (g *guard) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, d := g.admit(c)
		if d == nil {
			return &guardedConn{Conn: c, peer: peer, free: func() { g.open.Add(-1) }}, nil
		}
		g.note(d, peer)
		if g.refusing.Add(1) > maxRefusals {
			g.refusing.Add(-1)
			_ = c.Close()
			continue
		}
		go func() {
			defer g.refusing.Add(-1)
			refuse(c, d)
		}()
	}
}

// note logs a refusal, at most one a second: the log is not the caller's to fill.
func (g *guard) note(d *policy.Diagnostic, peer Peer) {
	now := time.Now().Unix()
	if g.noted.Swap(now) != now {
		g.log.Warn("connection refused", "code", d.Code, "uid", peer.UID, "pid", peer.PID)
	}
}

// admit takes a place for an allowed peer.
func (g *guard) admit(c net.Conn) (Peer, *policy.Diagnostic) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, policy.Errorf(policy.CodePeerRefused, "api.peer", "the connection has no peer credentials")
	}
	peer, err := peerOf(uc)
	if err != nil {
		return Peer{}, policy.Errorf(policy.CodePeerRefused, "api.peer", "the connection has no peer credentials").Because(err)
	}
	if !allowed(peer, g.uids, g.gids) {
		return peer, refusePeer(peer)
	}
	if g.open.Add(1) > g.most && !(g.self && int(peer.PID) == os.Getpid()) {
		g.open.Add(-1)
		return peer, policy.Errorf(policy.CodeUnavailable, "api.peer", "%d connections are open already", g.most).
			WithHint("Close connections that are not used, or try again.")
	}
	return peer, nil
}

// refuse answers the first request on c with d. It waits for the end of the
// request's header, because closing a socket with unread data resets it, and
// some clients then lose the answer.
func refuse(c net.Conn, d *policy.Diagnostic) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(refusalTime))
	p := ProblemOf(d)
	body, err := Marshal(p)
	if err != nil || !skipHeader(c) {
		return
	}
	_, err = fmt.Fprintf(c, "HTTP/1.1 %d Refused\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		p.Status, problemType, len(body), body)
	if uc, ok := c.(*net.UnixConn); ok && err == nil {
		_ = uc.CloseWrite()
		_, _ = io.CopyN(io.Discard, c, refusalHeader)
	}
}

func skipHeader(r io.Reader) bool {
	var seen []byte
	buf := make([]byte, 4096)
	for len(seen) < refusalHeader {
		n, err := r.Read(buf)
		seen = append(seen, buf[:n]...)
		if bytes.Contains(seen, []byte("\r\n\r\n")) {
			return true
		}
		if err != nil {
			return false
		}
	}
	return false
}
