// Package backend proves yoi-backend in front of a real Runtime: daemon, helper,
// sandbox and all. A browser drives its pages; everything it says is searched for
// what nobody may see.
package backend
