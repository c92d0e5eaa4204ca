package proxy

import (
	"bytes"
	"strings"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// refusal is an error that is the policy's no.
type refusal egress.Reason

func (r refusal) Error() string { return string(r) }

// protocol is what a stream turns out to be.
type protocol int

const (
	opaque protocol = iota // nothing in it to be compared
	isTLS
	isHTTP
)

// maxLine bounds the first line of what may be HTTP.
const maxLine = 16 << 10

// sniff judges the beginning of a stream to a name: errMore until it can be told.
// HTTP is what has HTTP/ in a first line that begins with a token, however leniently
// a server may read it: package http is strict about the rest.
func sniff(b []byte) (protocol, clientHello, error) {
	if len(b) == 0 {
		return opaque, clientHello{}, errMore
	}
	if b[0] == recordHandshake {
		h, err := parseHello(b)
		return isTLS, h, err
	}
	if b[0]&0x80 != 0 && len(b) >= 3 && b[2] == handshakeHello {
		return isTLS, clientHello{}, errBadTLS // SSL 2's, which has no name in it
	}
	if b[0]&0x80 != 0 && len(b) < 3 {
		return opaque, clientHello{}, errMore
	}
	line := bytes.TrimLeft(b, "\r\n \t")
	if len(line) == 0 {
		if len(b) > maxLine {
			return opaque, clientHello{}, refusal(egress.ReasonRequest)
		}
		return opaque, clientHello{}, errMore
	}
	word := bytes.IndexFunc(line, func(r rune) bool { return r >= 0x80 || !tokenByte(byte(r)) })
	if word == 0 || word > 0 && !bytes.ContainsRune([]byte(" \t\r\n"), rune(line[word])) {
		return opaque, clientHello{}, nil // no server takes that for a method
	}
	end := bytes.IndexByte(line, '\n')
	switch {
	case end >= 0:
		line = line[:end]
	case len(b) > maxLine:
		return opaque, clientHello{}, refusal(egress.ReasonRequest)
	default:
		return opaque, clientHello{}, errMore
	}
	if bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) {
		return isHTTP, clientHello{}, nil
	}
	return opaque, clientHello{}, nil
}

func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// compare holds a ClientHello against the name that was asked for.
func (h clientHello) compare(name string) error {
	switch {
	case h.ech:
		// The outer name is no promise about the inner one; that some clients send the
		// extension without meaning cannot be told from meaning it.
		return refusal(egress.ReasonECH)
	case h.name == "":
		return refusal(egress.ReasonNoSNI)
	}
	if got, ok := policy.CanonicalName(h.name); !ok || got != name {
		return refusal(egress.ReasonSNI)
	}
	return nil
}
