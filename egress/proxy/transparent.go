package proxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// serveRule serves a connection to the place of one rule. Under a wildcard only what
// the stream says tells for which name it is.
func (s *server) serveRule(c *conn, r policy.NetworkRule) {
	const via = egress.ViaTransparent
	if !r.Wildcard {
		s.tunnel(c, via, r.Name, r.Port, func(error) error { return nil })
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(sniffTimeout))
	p, hello, buf, err := c.sniffStream(nil)
	if err == nil && p == opaque {
		err = refusal(egress.ReasonProtocol)
	}
	if err == nil && p == isTLS {
		if hello.ech || hello.name == "" {
			err = hello.compare("")
		}
	}
	if err != nil {
		if err != io.EOF {
			s.refuse(c, via, egress.HostOf(r), r.Port, err)
		}
		return
	}
	c.br = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(buf), c), max(maxHead, len(buf)))
	if p == isHTTP {
		s.serveHTTP(c, via, &target{port: r.Port}, nil)
		return
	}
	if _, err := c.br.Peek(len(buf)); err != nil { // into its buffer, for tunnel to take
		return
	}
	s.tunnel(c, via, hello.name, r.Port, func(error) error { return nil })
}

// maxQuery bounds a DNS query, which has one name in it.
const maxQuery = 4096

// answerNames answers queries of the Worker's for names that wildcards cover.
func (s *server) answerNames(pc net.PacketConn) error {
	buf := make([]byte, maxQuery)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return err
		}
		if b := answerQuery(buf[:n], s.gate.rules); b != nil {
			_, _ = pc.WriteTo(b, from) // a resolver asks again
		}
	}
}

// serveNames is answerNames over TCP (RFC 1035, 4.2.2).
func (s *server) serveNames(c *conn) {
	var size [2]byte
	for {
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuery {
			return
		}
		q := make([]byte, n)
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		b := answerQuery(q, s.gate.rules)
		if b == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

// answerQuery answers with the place of the name's rule. Nothing is asked elsewhere,
// so no query leaves the sandbox: DNS is no channel. It returns nil for what is no
// query.
func answerQuery(q []byte, rules []policy.NetworkRule) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	out := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError},
		Questions: []dnsmessage.Question{question},
	}
	if name, ok := policy.CanonicalName(question.Name.String()); ok && question.Class == dnsmessage.ClassINET {
		for _, r := range rules {
			if !r.MatchesName(name) {
				continue
			}
			out.Header.RCode = dnsmessage.RCodeSuccess
			if question.Type == dnsmessage.TypeA {
				out.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 60},
					Body:   &dnsmessage.AResource{A: egress.Places(rules)[egress.HostOf(r)].As4()},
				}}
			}
			break
		}
	}
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}
