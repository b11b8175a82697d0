package service

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"strings"
	"time"

	"premix/internal/kit/access"
)

// NCBI's BLAST URL API, as its clients use it
// (https://blast.ncbi.nlm.nih.gov/doc/blast-help/urlapi.html): Put submits a search and
// returns a request id (RID); Get returns its state or its result. Answers contain a
// comment for programs, QBlastInfo.

// polite is the time that a Get waits for a result before it answers that there is none.
// Clients ask again only after many seconds, which would be long for a short search.
const polite = 20 * time.Second

// simple are parameters that are options of BLAST+ under another name.
var simple = map[string]string{
	"EXPECT": "evalue", "WORD_SIZE": "word_size", "HITLIST_SIZE": "max_target_seqs", "MATRIX_NAME": "matrix", "MATRIX": "matrix",
	"NUCL_REWARD": "reward", "NUCL_PENALTY": "penalty", "PERC_IDENT": "perc_identity", "THRESHOLD": "threshold",
	"COMPOSITION_BASED_STATISTICS": "comp_based_stats", "GENETIC_CODE": "query_gencode", "DB_GENETIC_CODE": "db_gencode",
	"SEARCHSP_EFF": "searchsp", "TEMPLATE_TYPE": "template_type", "TEMPLATE_LENGTH": "template_length", "MAX_NUM_SEQ": "max_target_seqs",
}

func (s *Service) blastCGI(w http.ResponseWriter, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	if err := r.ParseForm(); err != nil {
		return unreadable(err)
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data") {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			return unreadable(err)
		}
		if err := uploaded(r); err != nil {
			return err
		}
	}
	form := func(name string) string { return strings.TrimSpace(r.Form.Get(name)) }
	cmd := strings.ToLower(form("CMD"))
	if (cmd == "put" || cmd == "delete") && access.OtherSite(r) {
		return refused(http.StatusForbidden, "site", "a page of another site sent the request")
	}
	switch cmd {
	case "put":
		return s.put(w, user, form)
	case "get":
		return s.get(w, r, user, form)
	case "delete":
		if err := s.delete(user, form("RID")); err != nil {
			return err
		}
		info(w, http.StatusOK, "", "Status=DELETED")
		return nil
	case "displayrids", "info":
		info(w, http.StatusOK, "", "Status=OK")
		return nil
	default:
		return refused(400, "command", "CMD is Put, Get or Delete")
	}
}

// unreadable returns the error for a form that cannot be read.
func unreadable(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	return refused(http.StatusBadRequest, "body", "the form cannot be read: %v", err)
}

// uploaded reads a query that was sent as a file.
func uploaded(r *http.Request) error {
	for _, name := range []string{"QUERY", "QUERY_FILE", "QUERYFILE"} {
		if r.MultipartForm == nil || len(r.MultipartForm.File[name]) == 0 || r.Form.Get("QUERY") != "" {
			continue
		}
		f, err := r.MultipartForm.File[name][0].Open()
		if err != nil {
			return err
		}
		defer f.Close()
		text, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		r.Form.Set("QUERY", string(text))
	}
	return nil
}

func (s *Service) put(w http.ResponseWriter, user string, form func(string) string) error {
	program, options, err := translate(form)
	if err != nil {
		return err
	}
	name := form("FORMAT_TYPE")
	if name == "" {
		name = "XML"
	}
	f, err := ncbiFormat(name)
	if err != nil {
		return err
	}
	text := form("QUERY")
	if text == "" {
		text = form("QUERY_FILE")
	}
	j, err := s.Submit(user, program, form("DATABASE"), text, options, f)
	if err != nil {
		return err
	}
	info(w, http.StatusOK, "", fmt.Sprintf("    RID = %s\n    RTOE = %d", j.ID, 1))
	return nil
}

// ncbiFormat returns the format for a FORMAT_TYPE. Its tables have comments.
func ncbiFormat(name string) (string, error) {
	if strings.EqualFold(name, "tabular") {
		name = "table"
	}
	f, _, err := formatOf(name, "")
	return f, err
}

// translate returns the program and the options of BLAST+ for the parameters of a Put.
func translate(form func(string) string) (program string, options map[string]string, err error) {
	program, options = strings.ToLower(form("PROGRAM")), map[string]string{}
	on := func(name string) bool {
		v := strings.ToLower(form(name))
		return v == "on" || v == "yes" || v == "true" || v == "t"
	}
	if service := strings.ToLower(form("SERVICE")); service != "" && service != "plain" && service != "megablast" {
		return "", nil, refused(400, "option", "SERVICE=%s is not to be had here", service)
	}
	if e := form("ENTREZ_QUERY"); e != "" && e != "(none)" && !strings.EqualFold(e, "none") {
		return "", nil, refused(400, "option", "ENTREZ_QUERY is not to be had here: only NCBI can answer it")
	}
	if form("PHI_PATTERN") != "" || form("OTHER_ADVANCED") != "" {
		return "", nil, refused(400, "option", "PHI_PATTERN and OTHER_ADVANCED are not to be had here")
	}
	for theirs, ours := range simple {
		if v := form(theirs); v != "" {
			options[ours] = v
		}
	}
	if program == "megablast" || strings.EqualFold(form("SERVICE"), "megablast") {
		program = "blastn"
		options["task"] = "megablast"
	}
	if program == "blastn" && options["task"] == "" {
		// NCBI's blastn is the sensitive one; the default of BLAST+ is megablast.
		switch strings.ToLower(form("BLAST_PROGRAMS")) {
		case "megablast":
			options["task"] = "megablast"
		case "discomegablast":
			options["task"] = "dc-megablast"
		default:
			if options["task"] = "blastn"; on("MEGABLAST") {
				options["task"] = "megablast"
			}
		}
	}
	if on("SHORT_QUERY_ADJUST") && (program == "blastp" || program == "blastn") {
		// This task of BLAST+ has the same values.
		options["task"] = program + "-short"
	}
	if v := strings.Fields(form("GAPCOSTS")); len(v) == 2 {
		options["gapopen"], options["gapextend"] = v[0], v[1]
	}
	if v := options["matrix"]; v != "" {
		options["matrix"] = strings.ToUpper(v)
	}
	filter(program, form("FILTER"), options)
	if on("LCASE_MASK") {
		options["lcase_masking"] = "true"
	}
	if on("UNGAPPED_ALIGNMENT") {
		options["ungapped"] = "true"
	}
	if from, to := form("QUERY_FROM"), form("QUERY_TO"); from != "" && to != "" {
		options["query_loc"] = from + "-" + to
	}
	return program, options, nil
}

// filter translates FILTER: L masks low complexity, F masks nothing, and m masks only for
// the look-up.
func filter(program, text string, options map[string]string) {
	if text == "" {
		return
	}
	low, name := "no", "seg"
	if program == "blastn" {
		name = "dust"
	}
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == ' ' }) {
		switch f {
		case "L", "T", "true":
			low = "yes"
		case "m":
			options["soft_masking"] = "true"
		}
	}
	options[name] = low
}

func (s *Service) get(w http.ResponseWriter, r *http.Request, user string, form func(string) string) error {
	id := form("RID")
	if strings.EqualFold(form("FORMAT_OBJECT"), "SearchInfo") {
		return s.searchInfo(w, user, id)
	}
	name, f := form("FORMAT_TYPE"), ""
	if name != "" {
		var err error
		if f, err = ncbiFormat(name); err != nil {
			return err
		}
	}
	b, kind, err := s.fetch(r, user, id, f, fmt.Sprint(polite.Seconds()))
	if err != nil {
		return err
	}
	if b == nil {
		info(w, http.StatusOK, "", "\tStatus=WAITING")
		return nil
	}
	send(w, kind, b)
	return nil
}

// searchInfo writes the state of a search in NCBI's form.
func (s *Service) searchInfo(w http.ResponseWriter, user, id string) error {
	_, res, err := s.result(user, id, "")
	if err != nil {
		info(w, http.StatusOK, "", "\tStatus=UNKNOWN")
		return nil
	}
	s.mu.Lock()
	st := res.state
	s.mu.Unlock()
	switch st {
	case ready:
		// It only means that there is a result; the report may have no hits.
		info(w, http.StatusOK, "", "\tStatus=READY\nQBlastInfoEnd\n-->\n<!--QBlastInfoBegin\n\tThereAreHits=yes")
	case failed:
		info(w, http.StatusOK, "", "\tStatus=FAILED")
	default:
		info(w, http.StatusOK, "", "\tStatus=WAITING")
	}
	return nil
}

// ncbiRefusal answers with an error in a form that NCBI's clients understand. Mistakes in a
// search are shown in a page with status 200, as NCBI does: Biopython shows the message. An
// error that would make a client ask again without end, or that concerns HTTP, has its own
// status.
func (s *Service) ncbiRefusal(w http.ResponseWriter, why *Refusal) {
	switch why.Reason {
	case "unknown":
		info(w, why.Status, why.Message, "\tStatus=UNKNOWN")
	case "failed":
		info(w, why.Status, why.Message, "\tStatus=FAILED")
	case "token", "user", "queue", "ending", "journal", "internal":
		info(w, why.Status, why.Message, "")
	default:
		info(w, http.StatusOK, why.Message, "")
	}
}

// info writes a page with a comment for programs, and a message for people.
func info(w http.ResponseWriter, status int, message, comment string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	var b bytes.Buffer
	b.WriteString("<!DOCTYPE html>\n<html><head><title>premix blast</title></head><body>\n")
	if message != "" {
		fmt.Fprintf(&b, "<div class=\"error msInf\">Message: %s</div>\n<p class=\"error\">%[1]s</p>\n", html.EscapeString(message))
	}
	if comment != "" {
		fmt.Fprintf(&b, "<!--QBlastInfoBegin\n%s\nQBlastInfoEnd\n-->\n", comment)
	}
	b.WriteString("</body></html>\n")
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
}
