-- The usual case, before anything else is even defined: one rule, an empty queue, nothing lost, and every request is
-- granted. Commands are handled until one is not so; the general path goes on from there.

if count == 1 and #KEYS == 1 and stored[3] and format == FORMAT and waiting == 0
  and now >= last and now >= quarantined and now >= paused and now >= halted
  and seq >= seq_seen
  and names == epoch_seen .. ident and (lo == 0 or (lo <= now and now <= hi)) then
  local record = string.sub(stored[3], 1, RECORD)
  local number_of_kind, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
  local kind = kinds[number_of_kind]
  if record == ARGV[5] then
    only = {key = root, index = 1, record = record, kind = kind, rule = kind.rule(capacity, a, b, c, d, e, f)}
    kind.open(only, stored[3], RECORD + 1)
    if kind.knows and not kind.knows(only, now) then
      only = nil
    end
  end
  if only then
    local ledger = only
    local wait, complete = kind.wait, kind.complete
    local n = 0
    while from <= #ARGV do
      local what = unpack_from('<d', ARGV[from])
      local x, y, z, times, cost
      if what == ACQUIRE or what == RELEASE then
        what, x, y, z, times, cost = unpack_from('<dddddd', ARGV[from])
      elseif what == PEEK then
        what, cost = unpack_from('<dd', ARGV[from])
      end
      if what == ACQUIRE and cost > 0 then
        local take = y >= HELD and kind.take_held or kind.take
        if wait(ledger, now, cost) > 0 then
          break
        elseif times == 1 then
          said[n + 1], said[n + 2], said[n + 3] = 1, 0, take(ledger, now, cost)
          said[n + 4] = ledger.tally
          n = n + 4
        else
          -- What is there for all of them together is there for each. All that differs in their answers is the mark.
          local all = wait(ledger, now, cost * times) == 0
          local mark = all and kind.alike and take(ledger, now, cost * times)
          local head = n
          said[n + 1], said[n + 2], said[n + 3] = 4, 0, 0
          n = n + 3
          repeat
            n, done = n + 1, done + 1
            said[n] = mark or take(ledger, now, cost)
          until done == times or not all and wait(ledger, now, cost) > 0
          said[head + 2], said[head + 3] = done, ledger.tally
          if done < times then
            break
          end
          done = 0
        end
      elseif what == RELEASE and x == 1 and complete then
        local ticket, mark = y, times
        complete(ledger, now, z, mark)
        if ticket > 0 then
          call('HDEL', root .. ':g', string.sub(stream, 1, 12) .. pack('<d', ticket))
        end
      elseif what == PEEK then
        -- As `snapshot` says it (decide.lua), of a ledger that is neither paused nor waited for, and kept by our rule.
        if not kind.remaining then
          kind.more()
          kind.more = nil
        end
        said[n + 1] = kind.remaining(ledger, now)
        said[n + 2] = cost > 0 and wait(ledger, now, cost) or 0
        said[n + 3] = kind.reset_after(ledger, now)
        said[n + 4] = kind.reserved and kind.reserved(ledger, now) or 0
        said[n + 5] = kind.in_flight and kind.in_flight(ledger, now) or 0
        said[n + 6] = (cost == 0 or not kind.exact or kind.exact(ledger, now, cost)) and 1 or 0
        said[n + 7] = 0
        n = n + 7
      else
        break
      end
      from = from + 1
    end
    if from > #ARGV then
      local reset = kind.reset_after(ledger, now)
      local renewed = due_for_renewal(reset)
      if renewed then
        expires = math.max(expires, now + reset + GRACE)
      end
      seq = seq + 1
      local doubt = born > now and now - born or 0
      local answer = pack('<dddddddd', OK, now, seq, expires - now, doubt, 0, shift, 0) .. epoch_seen
        .. (n == 4 and pack('<dddd', 1, 0, said[3], said[4]) or pack_numbers(said))
      call('HSET', root,
        'm', pack('<dddddddddd', FORMAT, seq, now, quarantined, paused, expires, 0, shift, governed, born)
          .. names,
        'c' .. stream, pack('<dd', number, now) .. answer,
        's1', record .. kind.state(ledger))
      if renewed then
        prolong(expires - now)
      end
      if ledger.lists then
        keep_lists(ledger, expires - now, renewed)
      end
      return answer
    end
  end
end
