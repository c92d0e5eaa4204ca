package api

import (
	"context"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"yoi.dev/yoi-runtime/policy"
)

// Peer is who connected, as the kernel recorded it at connect(2).
type Peer struct {
	UID, GID uint32
	PID      int32 // for the log only: a pid may have been reused
}

// peerOf reads SO_PEERCRED; see unix(7).
func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, nil
}

// allowed reports whether uid may call: this process's own user, root, and
// those that the operator named.
func allowed(uid uint32, list []uint32) bool {
	return uid == 0 || uid == uint32(os.Geteuid()) || slices.Contains(list, uid)
}

func refusePeer(p Peer) *policy.Diagnostic {
	return policy.Errorf(policy.CodePeerRefused, "api.peer", "uid %d is not allowed on this socket", p.UID)
}

type peerKey struct{}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	if g, ok := c.(*guardedConn); ok {
		return context.WithValue(ctx, peerKey{}, g.peer)
	}
	return ctx
}

// PeerFrom returns the peer of a request's context.
func PeerFrom(ctx context.Context) (Peer, bool) {
	p, ok := ctx.Value(peerKey{}).(Peer)
	return p, ok
}
