package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"

	"yoi.dev/yoi-runtime/egress"
)

// SOCKS 5 (RFC 1928), with names or addresses, CONNECT only, no authentication: who
// can reach the socket is the Worker.
const (
	socksVersion  = 5
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
	socksNoMethod = 0xff

	socksOK          = 0
	socksFailed      = 1
	socksNotAllowed  = 2
	socksUnreachable = 4
	socksNoCommand   = 7
	socksNoAddress   = 8
)

// socksMethods reads a greeting behind the version, and says whether no
// authentication is among what is offered.
func socksMethods(r io.Reader) (bool, error) {
	var n [1]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return false, err
	}
	methods := make([]byte, n[0])
	if _, err := io.ReadFull(r, methods); err != nil {
		return false, err
	}
	for _, m := range methods {
		if m == 0 {
			return true, nil
		}
	}
	return false, nil
}

// socksError is a request that is answered with code.
type socksError struct{ code byte }

func (e socksError) Error() string { return "SOCKS request refused" }

// socksRequest reads a request: its host and port.
func socksRequest(r io.Reader) (host string, port uint16, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return "", 0, socksError{socksFailed}
	}
	var addr []byte
	switch head[3] {
	case socksIPv4:
		addr = make([]byte, 4)
	case socksIPv6:
		addr = make([]byte, 16)
	case socksName:
		var n [1]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return "", 0, err
		}
		addr = make([]byte, n[0])
	default:
		return "", 0, socksError{socksNoAddress}
	}
	var p [2]byte
	if _, err := io.ReadFull(r, addr); err != nil {
		return "", 0, err
	}
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return "", 0, err
	}
	port = binary.BigEndian.Uint16(p[:])
	if head[3] == socksName {
		host = string(addr)
	} else {
		a, _ := netip.AddrFromSlice(addr)
		host = a.String()
	}
	if head[1] != socksConnect {
		return host, port, socksError{socksNoCommand}
	}
	return host, port, nil
}

func socksReply(w io.Writer, code byte) error {
	_, err := w.Write([]byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// socksCode is the reply for an error of check or dial.
func socksCode(err error) byte {
	var e socksError
	switch {
	case err == nil:
		return socksOK
	case errors.As(err, &e):
		return e.code
	case reasonOf(err) == egress.ReasonDial || reasonOf(err) == egress.ReasonResolve:
		return socksUnreachable
	}
	return socksNotAllowed
}
