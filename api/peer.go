package api

import (
	"context"
	"net"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Peer is who connected, as the kernel recorded it at connect(2).
type Peer struct {
	UID, GID uint32
	// Groups are the supplementary ones.
	Groups []uint32
	PID    int32 // for the log only: a pid may have been reused
}

// peerOf reads SO_PEERCRED and SO_PEERGROUPS (Linux 4.13); see unix(7).
func peerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			groups, credErr = peerGroups(fd)
		}
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{UID: cred.Uid, GID: cred.Gid, Groups: groups, PID: cred.Pid}, nil
}

// peerGroups asks for as many groups as there are; ERANGE says how many.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// allowed reports whether a peer may call: this process's own user, root, and
// those that the operator named, by uid or by a group.
func allowed(p Peer, uids, gids []uint32) bool {
	return p.UID == 0 || p.UID == uint32(os.Geteuid()) || slices.Contains(uids, p.UID) ||
		slices.ContainsFunc(gids, func(g uint32) bool { return g == p.GID || slices.Contains(p.Groups, g) })
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
