package egress

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"time"
)

// MaxLog bounds the log of one Worker; what comes later is counted only.
const MaxLog = 4 << 20

// How a Worker asked.
const (
	ViaConnect     = "connect"
	ViaHTTP        = "http"
	ViaSOCKS       = "socks5"
	ViaTransparent = "transparent"
	ViaSecret      = "secret" // an endpoint that adds a secret
)

// Reason says why a connection or request was refused, or failed.
type Reason string

// The reasons. Append only.
const (
	ReasonRule        Reason = "no_rule"     // no rule names the host and port
	ReasonName        Reason = "bad_name"    // the host is no name, or an address in disguise
	ReasonAddress     Reason = "address"     // the name leads only to addresses that are not public
	ReasonSNI         Reason = "sni"         // TLS asks for another name
	ReasonNoSNI       Reason = "no_sni"      // TLS asks for no name
	ReasonECH         Reason = "ech"         // TLS hides which name it asks for
	ReasonTLS         Reason = "bad_tls"     // what looks like TLS is no ClientHello
	ReasonHost        Reason = "host"        // HTTP names another host
	ReasonRequest     Reason = "bad_request" // not a request that is passed on
	ReasonProtocol    Reason = "protocol"    // what is asked for is not served
	ReasonBytes       Reason = "max_bytes"
	ReasonConnections Reason = "max_connections"
	ReasonResolve     Reason = "resolve" // failures, not refusals, from here on
	ReasonDial        Reason = "dial"
)

// Refusal reports whether r is the policy's refusal rather than a failure.
func (r Reason) Refusal() bool { return r != "" && r != ReasonResolve && r != ReasonDial }

// Decision is a line of the log.
type Decision struct {
	Time time.Time `json:"time"`
	// ID is shared by the lines about one connection.
	ID  uint64 `json:"id"`
	Via string `json:"via"`
	// Host is what the Worker asked for: hostile text.
	Host    string `json:"host,omitempty"`
	Port    uint16 `json:"port,omitempty"`
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty"`
	Reason  Reason `json:"reason,omitempty"`
	// Address is what was dialled.
	Address string `json:"address,omitempty"`
	// Closed lines tell how much went over a connection, when it has ended.
	Closed   bool          `json:"closed,omitempty"`
	BytesOut int64         `json:"bytes_out,omitempty"`
	BytesIn  int64         `json:"bytes_in,omitempty"`
	Duration time.Duration `json:"duration,omitempty"`
}

// ReadLog reads the decisions of a log, which may be written to meanwhile: at most
// limit of them, the last ones, 0 for all. Lines that are none are left out.
func ReadLog(r io.Reader, limit int) ([]Decision, error) {
	var out []Decision
	in := bufio.NewReaderSize(io.LimitReader(r, MaxLog+64<<10), 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if err == nil {
			var d Decision
			if json.Unmarshal(line, &d) == nil {
				out = append(out, d)
			}
			if limit > 0 && len(out) >= 2*limit {
				out = append(out[:0], out[len(out)-limit:]...)
			}
			continue
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if limit > 0 && len(out) > limit {
			out = out[len(out)-limit:]
		}
		if err == io.EOF {
			return out, nil
		}
		return out, err
	}
}
