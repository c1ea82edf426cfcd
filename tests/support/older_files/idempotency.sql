BEGIN TRANSACTION;
CREATE TABLE idempotency_keys (
    key TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    result TEXT,
    expires_at REAL
) WITHOUT ROWID;
INSERT INTO "idempotency_keys" VALUES('6ea7811f304a2bb089150b9847fbab4c9581f96ebba1367a8d5b51586f8840ec','e4b8887f2dabcbbfd7e0cf53094b974b8749413e79e90413feb26cf106e1c224','done','364170a81e07c90b','{"call_id":"c1","name":"calculate","status":"ok","content":42,"error":null}',1.79560688037074899676e+09);
INSERT INTO "idempotency_keys" VALUES('f7c8976b42ac828a78c985e16ddeb9690d6d6eada070a31c19702a5ade2c11b6','d3fa95eaa90a7a659604d2e09f038e39715b83924718493472df5fe98f3b5618','done','364170a81e07c90b','{"call_id":"c2","name":"get_today_date","status":"ok","content":{"today":"2026-11-24","weekday":"Tuesday","year":2026,"tomorrow":"2026-11-25","day_after_tomorrow":"2026-11-26","next_7_days_by_weekday":{"wednesday":"2026-11-25","thursday":"2026-11-26","friday":"2026-11-27","saturday":"2026-11-28","sunday":"2026-11-29","monday":"2026-11-30","tuesday":"2026-12-01"},"one_week_from_now":"2026-12-01","two_weeks_from_now":"2026-12-08"},"error":null}',1.79560688041765785212e+09);
CREATE INDEX idempotency_expiry ON idempotency_keys (expires_at);
COMMIT;
