-- One step of a job whose authority is Redis: checks, counts and the finish line in one go, so nobody comes between.
--
-- KEYS  the job (a hash); the items that were counted and the pages that were added (sets, in the same slot)
-- ARGV  the step; the time to live in ms; the time now in µs; what the step needs
--
-- Answers a list of texts. The first says how it went:
--   ok         then: items counted, what to do about the announcement (none, claim, wait), and the fields of the hash
--   refused    then: new items, failed ones among them, and the fields; the rules say why
--   unknown    there is no such job
--   type       then: what the key holds instead of a hash
--   foreign    the hash is the view of a store
--   broken     a field is missing
--   forgotten  the items that were counted are gone, so nobody can tell a repeat
local job, items, pages = KEYS[1], KEYS[2], KEYS[3]
local step, ttl, now = ARGV[1], ARGV[2], ARGV[3]
local LEASE_US = 30000000

local kind = redis.call('TYPE', job)['ok']
if kind ~= 'none' and kind ~= 'hash' then
  return {'type', kind}
end
if kind == 'none' then
  if step ~= 'init' then
    return {'unknown'}
  end
  redis.call('DEL', items, pages)
  redis.call('HSET', job, 'status', 'INITIALIZING', 'total', '0', 'done', '0', 'errors', '0', 'version', '1',
    'authority', 'redis', 'announces', ARGV[4], 'tenant', ARGV[5], 'created_at', now, 'updated_at', now,
    'finished_at', '', 'pages', '0', 'announced', '0', 'claimed_until', '0')
  redis.call('PEXPIRE', job, ttl)
end

local found = redis.call('HMGET', job, 'authority', 'status', 'total', 'done', 'errors', 'pages', 'announced',
  'claimed_until')
if found[1] ~= 'redis' then
  return {found[1] and 'foreign' or 'broken'}
end
for _, field in ipairs(found) do
  if not field then
    return {'broken'}
  end
end
local status, total, done, errors = found[2], tonumber(found[3]), tonumber(found[4]), tonumber(found[5])
if not (total and done and errors) then
  return {'broken'}
end
local open = status == 'INITIALIZING' or status == 'CRAWLING'
-- Numbers up to 2^53 are exact; %.0f, because larger ones would be written as 1e+15.
local function text(number)
  return string.format('%.0f', number)
end

if status ~= 'DONE' and step ~= 'get'
    and (redis.call('SCARD', items) ~= done or redis.call('SCARD', pages) ~= tonumber(found[6])) then
  return {'forgotten'}
end

local function fields(...)
  local answer = {...}
  for _, text in ipairs(redis.call('HGETALL', job)) do
    answer[#answer + 1] = text
  end
  return answer
end

local next_status, counted, failed, fresh = status, 0, 0, {}
local refused, touched = false, false

if step == 'total' then
  local wanted = tonumber(ARGV[4])
  refused = wanted ~= total and (status == 'DONE' or wanted < done)
  total = wanted
elseif step == 'page' then
  if redis.call('SISMEMBER', pages, ARGV[4]) == 0 then
    local wanted = total + tonumber(ARGV[5])
    refused = not open or wanted > 9007199254740991
    if not refused then
      redis.call('SADD', pages, ARGV[4])
      redis.call('HINCRBY', job, 'pages', 1)
      total, touched = wanted, true
    end
  end
elseif step == 'begin' then
  refused = not open
  next_status = 'CRAWLING'
elseif step == 'end' then
  refused = open and done > total
  open = false
-- Of a job that is DONE nothing can change, so where its items are gone every mark is a repeat.
elseif step == 'mark' and not (status == 'DONE' and redis.call('SCARD', items) ~= done) then
  for i = 4, #ARGV, 2 do
    if redis.call('SISMEMBER', items, ARGV[i]) == 0 then
      counted = counted + 1
      fresh[counted] = ARGV[i]
      if ARGV[i + 1] == '1' then
        failed = failed + 1
      end
    end
  end
  refused = counted > 0 and (status == 'DONE' or (not open and done + counted > total))
end
if refused then
  return fields('refused', text(counted), text(failed))
end

for _, item in ipairs(fresh) do
  redis.call('SADD', items, item)
end
done, errors = done + counted, errors + failed
if not open and status ~= 'DONE' then
  next_status = done >= total and 'DONE' or (done == 0 and 'PROCESSING_WAIT' or 'PROCESSING')
end

if touched or next_status ~= status or text(total) ~= found[3] or counted > 0 then
  redis.call('HSET', job, 'status', next_status, 'total', text(total), 'done', text(done), 'errors', text(errors),
    'updated_at', now)
  redis.call('HINCRBY', job, 'version', 1)
  if next_status == 'DONE' then
    redis.call('HSET', job, 'finished_at', now)
  end
  redis.call('PEXPIRE', job, ttl)
  redis.call('PEXPIRE', items, ttl)
  redis.call('PEXPIRE', pages, ttl)
end

-- Who claims the announcement has half a minute for it. A repeat after that claims it again, so a crash in between
-- announces it twice, under the same id, rather than never.
local announcement = 'none'
if step == 'announced' then
  redis.call('HSET', job, 'announced', '1')
elseif step == 'release' then
  redis.call('HSET', job, 'claimed_until', '0')
elseif step ~= 'get' and next_status == 'DONE' and found[7] ~= '1' then
  announcement = 'wait'
  local claimed_until = tonumber(found[8]) or 0
  -- Clocks differ by a little. A claim that lasts twice as long as claims do was made by one that is wrong, and nobody can wait for
  -- its end.
  if claimed_until <= tonumber(now) or claimed_until > tonumber(now) + 2 * LEASE_US then
    announcement = 'claim'
    redis.call('HSET', job, 'claimed_until', text(tonumber(now) + LEASE_US))
  end
end
return fields('ok', text(counted), announcement)
