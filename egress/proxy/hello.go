package proxy

import (
	"encoding/binary"
	"errors"

	"yoi.dev/yoi-runtime/egress"
)

// errMore says that the beginning of a stream is not yet enough to judge it by.
var errMore = errors.New("more is needed")

// maxHello bounds a ClientHello, which in practice is under 4 KiB even with
// post-quantum key shares.
const maxHello = 64 << 10

const (
	recordHandshake  = 22
	recordHeader     = 5
	maxRecord        = 1<<14 + 256
	handshakeHello   = 1
	extensionSNI     = 0
	extensionECH     = 0xfe0d // draft-ietf-tls-esni, RFC 9849
	extensionOldESNI = 0xffce
)

// clientHello is what is compared of a ClientHello (RFC 8446, 4.1.2).
type clientHello struct {
	name string // "" without SNI
	ech  bool   // the real one may be inside, encrypted
}

// parseHello reads a ClientHello from the beginning of a stream, which may be cut
// into records and segments anywhere. It returns errMore until it is whole, and a
// reason for what no honest client sends.
func parseHello(b []byte) (clientHello, error) {
	msg, err := handshake(b)
	if err != nil {
		return clientHello{}, err
	}
	var h clientHello
	r := reader{msg}
	r.skip(2 + 32)             // legacy_version, random
	r.skip(int(r.u8()))        // legacy_session_id
	r.skip(int(r.u16()))       // cipher_suites
	r.skip(int(r.u8()))        // legacy_compression_methods
	if !r.bad() && r.empty() { // extensions may be left out before TLS 1.3
		return h, nil
	}
	ext := reader{r.bytes(int(r.u16()))}
	if r.bad() || !r.empty() {
		return h, errBadTLS
	}
	seen := make(map[uint16]bool)
	for !ext.empty() {
		kind := ext.u16()
		body := reader{ext.bytes(int(ext.u16()))}
		if ext.bad() || seen[kind] { // twice is forbidden, and one of them is not what we read
			return h, errBadTLS
		}
		seen[kind] = true
		switch kind {
		case extensionECH, extensionOldESNI:
			h.ech = true
		case extensionSNI:
			if h.name, err = serverName(body); err != nil {
				return h, err
			}
		}
	}
	return h, nil
}

var errBadTLS = refusal(egress.ReasonTLS)

// handshake collects the records' content until a whole first message is there.
func handshake(b []byte) ([]byte, error) {
	var msg []byte
	for {
		if len(msg) >= 4 {
			n := int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])
			if msg[0] != handshakeHello || n > maxHello {
				return nil, errBadTLS
			}
			if len(msg) >= 4+n {
				return msg[4 : 4+n], nil
			}
		}
		if len(b) < recordHeader {
			return nil, errMore
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		// A record of another type or of no content in between is forbidden (RFC 8446, 5.1).
		if b[0] != recordHandshake || b[1] != 3 || n == 0 || n > maxRecord {
			return nil, errBadTLS
		}
		if len(b) < recordHeader+n {
			if len(msg)+len(b) > maxHello {
				return nil, errBadTLS
			}
			return nil, errMore
		}
		msg = append(msg, b[recordHeader:recordHeader+n]...)
		b = b[recordHeader+n:]
	}
}

// serverName reads the extension's one host name (RFC 6066, 3).
func serverName(r reader) (string, error) {
	list := reader{r.bytes(int(r.u16()))}
	if r.bad() || !r.empty() || list.u8() != 0 {
		return "", errBadTLS
	}
	name := list.bytes(int(list.u16()))
	if list.bad() || !list.empty() || len(name) == 0 {
		return "", errBadTLS
	}
	return string(name), nil
}

// reader takes fields off the front. Once a field was not there it is bad, and all
// it returns is empty.
type reader struct{ b []byte }

var short = []byte(nil)

func (r *reader) bad() bool   { return r.b == nil }
func (r *reader) empty() bool { return len(r.b) == 0 }

func (r *reader) bytes(n int) []byte {
	if r.b == nil || n > len(r.b) {
		r.b = short
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) skip(n int) { r.bytes(n) }

func (r *reader) u8() uint8 {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}
